//! A small disk that can be filled.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::guard::Guard;

/// Size: enough for a database and the data of one run.
const SIZE: &str = "1200m";

/// A mounted tmpfs.
#[derive(Debug)]
pub struct Disk {
    ballast: PathBuf,
}

impl Disk {
    /// Mounts a tmpfs at a folder. Needs root.
    pub fn mount(folder: &Path, guard: &Guard) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "tmpfs"]).arg(folder);
        let output = mount.output().context("cannot run `mount`")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        guard.mounted(folder);
        Ok(Self { ballast: folder.join("ballast") })
    }

    /// Fills the disk to the last block.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = File::options().create(true).append(true).open(&self.ballast)?;
        let block = [0; 64 * 1024];
        while ballast.write(&block).is_ok_and(|written| written > 0) {}
        Ok(())
    }

    /// Frees the space again.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(&self.ballast).context("cannot remove the ballast")
    }

    /// Checks whether this machine allows mounting.
    pub fn is_possible() -> Result<()> {
        let guard = Guard::new()?;
        let folder = guard.folder().join("disk");
        fs::create_dir(&folder)?;
        Self::mount(&folder, &guard).map(drop)
    }
}
