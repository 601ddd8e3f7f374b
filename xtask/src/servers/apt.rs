//! Installs Debian packages.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

use super::home::{Home, is_root};
use crate::program;

/// Installs missing packages, or fails with the command that installs them.
pub(crate) fn install(packages: &[&str], may_install: bool) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let packages: BTreeSet<&str> = packages.iter().copied().collect();
    let list = packages.iter().copied().collect::<Vec<_>>().join(" ");
    if !may_install || !is_root()? || program::find("apt-get").is_none() {
        bail!(
            "Debian packages are missing: {list}\n\
             install them with `sudo apt-get install --no-install-recommends {list}`, \
             or leave their tests out with --only"
        );
    }
    let began = Instant::now();
    eprintln!("installing Debian packages: {list}");
    // The update fails if one of many repositories is unreachable; the packages may be in the
    // others.
    if let Err(error) = run(apt_get().arg("update")) {
        eprintln!("warning: {error:#}");
    }
    run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))?;
    eprintln!("installed {list} ({:.1} s)", began.elapsed().as_secs_f32());
    Ok(())
}

/// Downloads a package of Debian unstable with its dependencies and unpacks them into a folder. The
/// folder has its own package database: the system's database is not touched, and root is not
/// needed.
pub(crate) fn unpack_from_unstable(package: &str, folder: &Path) -> Result<()> {
    let mirror = mirror()?;
    fs::create_dir_all(folder.parent().context("no folder to unpack into")?)?;
    let mut home = Home::create(&format!("{}-download", folder.display()))?;
    prepare_download(&mirror, &home)?;
    // Try twice: unstable changes all day, and its list may name packages that a mirror has no
    // longer, or not yet.
    download(package, &mut home)
        .or_else(|_| download(package, &mut home))
        .and_then(|()| unpack(&mut home))
        .map_err(|error| anyhow!("cannot get {package} from {mirror}: {error:#}\n{}", home.log_tail()))?;
    // The rename comes last, so that a folder of this name is always complete.
    fs::rename(home.path("unpacked"), folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn prepare_download(mirror: &str, home: &Home) -> Result<()> {
    for part in ["state", "lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(home.path(part))?;
    }
    fs::write(home.path("status"), "")?;
    fs::write(home.path("sources.list"), format!("deb {mirror} unstable main\n"))?;
    Ok(())
}

fn download(package: &str, home: &mut Home) -> Result<()> {
    let mut update = private_apt_get(home);
    // Otherwise a list that cannot be fetched is only a warning.
    update.args(["-o", "APT::Update::Error-Mode=any", "update"]);
    home.run(update)?;
    let mut download = private_apt_get(home);
    download.args(["install", "--yes", "--no-install-recommends", "--download-only", package]);
    home.run(download)
}

fn unpack(home: &mut Home) -> Result<()> {
    for entry in fs::read_dir(home.path("cache/archives"))? {
        let archive = entry?.path();
        if archive.extension() == Some(OsStr::new("deb")) {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("--extract").arg(archive).arg(home.path("unpacked"));
            home.run(extract)?;
        }
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command
}

fn private_apt_get(home: &Home) -> Command {
    let mut command = apt_get();
    let at = |path: &str| home.path(path).display().to_string();
    for setting in [
        format!("Dir::State={}", at("state")),
        format!("Dir::State::lists={}", at("lists")),
        format!("Dir::State::status={}", at("status")),
        format!("Dir::Cache={}", at("cache")),
        format!("Dir::Etc::sourcelist={}", at("sources.list")),
        "Dir::Etc::sourceparts=-".to_owned(),
        // The user `_apt` may not write below the target folder.
        "APT::Sandbox::User=root".to_owned(),
    ] {
        command.args(["-o", &setting]);
    }
    command
}

/// The Debian mirror of this system, determined without root and without an earlier update.
fn mirror() -> Result<String> {
    let output = apt_get().args(["update", "--print-uris"]).output().context("cannot run apt-get")?;
    let uris = String::from_utf8(output.stdout)?;
    mirror_among(&uris).context("apt's sources name no Debian mirror")
}

/// Parses lines such as `'http://mirror/debian/dists/bookworm/InRelease' mirror_InRelease 0`.
fn mirror_among(uris: &str) -> Option<String> {
    let mut folders = uris.lines().filter_map(|line| line.trim_start_matches('\'').split_once("dists/"));
    let (mirror, _) = folders.find(|(folder, _)| folder.ends_with("/debian/"))?;
    Some(mirror.to_owned())
}

fn run(command: &mut Command) -> Result<()> {
    let words = program::words(command);
    let output = command.output().with_context(|| format!("cannot run `{words}`"))?;
    if !output.status.success() {
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("`{words}` failed ({}):\n{stdout}{stderr}", output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_main_archive() {
        let uris = "'https://other.test/node/dists/nodistro/InRelease' other 0\n\
                    'http://mirror.test/debian-security/dists/bookworm-security/InRelease' security 0\n\
                    'http://mirror.test/debian/dists/bookworm/InRelease' main 0\n";
        assert_eq!(mirror_among(uris).as_deref(), Some("http://mirror.test/debian/"));
        assert_eq!(mirror_among(""), None);
    }
}
