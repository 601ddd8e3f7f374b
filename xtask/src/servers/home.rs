//! A temporary folder and the process that works in it: a server, or a program that prepares one.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Recipe;
use crate::cleanup::{Cleanup, Stop};
use crate::program;

pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    /// Stops the process and removes the folder.
    pub(crate) cleanup: Cleanup,
    account: Option<Account>,
}

impl Home {
    /// Creates the folder of a server, below /tmp: every account can access it, and the path of a
    /// socket is limited to about a hundred bytes.
    pub(crate) fn of_server(recipe: &dyn Recipe) -> Result<Self> {
        let account = match recipe.account_for_root() {
            Some(name) if is_root()? => Some(Account::named(name)?),
            _ => None,
        };
        let prefix = format!("/tmp/outbox-{}", recipe.name());
        let home = Self { account, ..Self::create(&prefix)? };
        if let Some(Account { user, group }) = account {
            chown(&home.folder, Some(user), Some(group))?;
        }
        Ok(home)
    }

    /// Creates a new folder.
    pub(crate) fn create(prefix: &str) -> Result<Self> {
        let folder = create_new_folder(&format!("{prefix}-{}", process::id()))?;
        let cleanup = Cleanup::new(Some(&folder))?;
        Ok(Self { folder, cleanup, account: None })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command that runs as the server's account, with nothing of the environment but the PATH.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // A starting MariaDB removes all temporary tables in its temporary folder, including those
        // of other servers.
        command.env("TMPDIR", &self.folder);
        if let Some(Account { user, group }) = self.account {
            command.uid(user).gid(group);
        }
        command
    }

    /// Runs a command to its end, even when xtask is stopped meanwhile: an interrupted `initdb`
    /// would leak shared memory. The log keeps the output of a failed command only.
    pub(crate) fn run(&mut self, command: Command) -> Result<()> {
        let words = program::words(&command);
        self.spawn(command, Stop::Wait)?;
        let status = self.cleanup.wait()?;
        ensure!(status.success(), "`{words}` failed: {status}");
        fs::remove_file(self.log())?;
        Ok(())
    }

    /// Starts a command that is stopped with this home; its output goes to the log.
    pub(crate) fn spawn(&mut self, mut command: Command, stop: Stop) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.cleanup.spawn(&mut command, stop)?;
        Ok(())
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(30)..];
        if tail.is_empty() {
            return "its log is empty".to_owned();
        }
        format!("its log ends with:\n    {}", tail.join("\n    "))
    }

    fn log(&self) -> PathBuf {
        self.path("log")
    }
}

/// Creates a folder with a new name, since every account may create folders in /tmp.
fn create_new_folder(prefix: &str) -> Result<PathBuf> {
    for attempt in 0.. {
        let folder = PathBuf::from(format!("{prefix}-{attempt}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot create {}", folder.display())),
            Ok(()) => return Ok(folder),
        }
    }
    unreachable!("one of four billion names is free")
}

#[derive(Clone, Copy)]
struct Account {
    user: u32,
    group: u32,
}

impl Account {
    fn named(name: &str) -> Result<Self> {
        Ok(Self { user: id(&["-u", name])?, group: id(&["-g", name])? })
    }
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(id(&["-u"])? == 0)
}

fn id(arguments: &[&str]) -> Result<u32> {
    let output = Command::new("id").args(arguments).output().context("cannot run `id`")?;
    let number = String::from_utf8_lossy(&output.stdout);
    number.trim().parse().with_context(|| {
        format!("`id {}` said: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())
    })
}
