//! Debian's packages.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::home::is_root;
use crate::program;

/// Installs what is missing, or tells how to.
pub(crate) fn install(packages: &[&str], may_install: bool) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !may_install || !is_root()? || program::find("apt-get").is_none() {
        bail!(
            "Debian packages are missing: {list}\n\
             install them with `sudo apt-get install --no-install-recommends {list}`, \
             or leave their tests out with --only"
        );
    }
    let began = Instant::now();
    eprintln!("installing Debian packages: {list}");
    // One unreachable repository among many fails it, and what we need may be in the others.
    if let Err(error) = run(apt_get().arg("update")) {
        eprintln!("warning: {error:#}");
    }
    run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))?;
    eprintln!("installed {list} ({:.1} s)", began.elapsed().as_secs_f32());
    Ok(())
}

/// Downloads a package of Debian unstable with all that it depends on and unpacks them into a folder. This
/// has a package database of its own: the system's is not touched, and no root is needed.
pub(crate) fn unpack_from_unstable(package: &str, folder: &Path) -> Result<()> {
    ensure!(program::find("apt-get").is_some(), "there is no apt-get here");
    let work = folder.with_extension("download");
    let unpacked = work.join("unpacked");
    let _ = fs::remove_dir_all(&work);
    for part in ["lists/partial", "cache/archives/partial", "state", "unpacked"] {
        fs::create_dir_all(work.join(part))?;
    }
    fs::write(work.join("status"), "")?;
    fs::write(work.join("sources.list"), format!("deb {} unstable main\n", mirror()?))?;

    run(private_apt_get(&work).arg("update"))?;
    run(private_apt_get(&work).args([
        "install",
        "--yes",
        "--no-install-recommends",
        "--download-only",
        package,
    ]))?;
    for entry in fs::read_dir(work.join("cache/archives"))? {
        let archive = entry?.path();
        if archive.extension() == Some(OsStr::new("deb")) {
            run(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&unpacked))?;
        }
    }
    // Last, so that a folder of this name is always whole.
    fs::rename(&unpacked, folder)?;
    fs::remove_dir_all(&work)?;
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}

fn private_apt_get(work: &Path) -> Command {
    let mut command = apt_get();
    let at = |path: &str| work.join(path).display().to_string();
    for setting in [
        format!("Dir::State={}", at("state")),
        format!("Dir::State::lists={}", at("lists")),
        format!("Dir::State::status={}", at("status")),
        format!("Dir::Cache={}", at("cache")),
        format!("Dir::Etc::sourcelist={}", at("sources.list")),
        "Dir::Etc::sourceparts=-".to_owned(),
        // Its user `_apt` may not write below our target folder.
        "APT::Sandbox::User=root".to_owned(),
    ] {
        command.args(["-o", &setting]);
    }
    command
}

/// Where this system gets its Debian packages from.
fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"])
        .output()?;
    let repositories = String::from_utf8(output.stdout)?;
    let main = |line: &&str| line.contains("/debian/ ");
    let line = repositories.lines().find(main).context("no Debian mirror in apt's sources")?;
    let (address, _) = line.split_once(' ').context("apt-get indextargets said something unexpected")?;
    Ok(address.to_owned())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?} failed ({}):\n{said}{complained}", output.status);
    }
    Ok(())
}
