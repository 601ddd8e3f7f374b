//! `cargo xtask dist`: builds the command for release and packs it with its service file,
//! completions and guide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::program;

/// Kafka over TLS is left out of everyday builds, since it builds OpenSSL.
const FEATURES: &str = "kafka-tls";

/// Files and folders that are packed unchanged: source and destination.
const FILES: [(&str, &str); 10] = [
    ("packaging/outbox.service", "systemd/outbox.service"),
    ("crates/outbox-cli/outbox.sample.toml", "outbox.sample.toml"),
    ("packaging/grafana/outbox.json", "grafana/outbox.json"),
    ("packaging/prometheus/alerts.yaml", "prometheus/alerts.yaml"),
    ("docs/guide", "docs/guide"),
    ("recipes", "recipes"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
];

/// A shell, and the name of its completion file.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "outbox.bash"), ("zsh", "_outbox"), ("fish", "outbox.fish")];

/// Libraries that every Linux with glibc has.
const COMMON_LIBRARIES: [&str; 6] =
    ["linux-vdso", "libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "ld-linux"];

pub(crate) fn command() -> Result<()> {
    cargo::run(cargo().args([
        "build",
        "--profile",
        "dist",
        "--locked",
        "--package",
        "outbox-cli",
        "--features",
        FEATURES,
    ]))?;
    let binary = cargo::target().join("dist/outbox");
    let libraries = libraries(&binary)?;
    let uncommon = uncommon_libraries(&libraries);
    ensure!(
        uncommon.is_empty(),
        "the command needs libraries that not every system has: {}",
        uncommon.join(", ")
    );

    let name = format!("outbox-{}-{}", version(&binary)?, host()?);
    let folder = cargo::target().join("packages");
    let staged = folder.join(&name);
    let _ = fs::remove_dir_all(&staged);
    stage(&binary, &staged)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    // Fixed owner, time and order: the same files make the same archive.
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--gzip",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
    ]);
    tar.arg("--file");
    cargo::run(tar.arg(&archive).arg("--directory").arg(&folder).arg(&name))?;

    println!("{}: {}", binary.display(), size(&binary)?);
    println!("{}: {}", archive.display(), size(&archive)?);
    println!("libraries:\n{libraries}");
    Ok(())
}

fn stage(binary: &Path, staged: &Path) -> Result<()> {
    copy(binary, &staged.join("bin/outbox"))?;
    for (from, to) in FILES {
        copy(&cargo::root().join(from), &staged.join(to))?;
    }
    fs::create_dir_all(staged.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        fs::write(staged.join("completions").join(file), script)?;
    }
    Ok(())
}

/// Copies a file or a folder, and creates the parent folders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(failed)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().with_context(failed)?)?;
    fs::copy(from, to).with_context(failed)?;
    Ok(())
}

/// Parses the output `outbox 0.1.0`.
fn version(binary: &Path) -> Result<String> {
    let printed = output(Command::new(binary).arg("--version"))?;
    printed.split_whitespace().nth(1).map(str::to_owned).with_context(|| format!("no version in {printed:?}"))
}

fn host() -> Result<String> {
    let printed = output(Command::new("rustc").arg("-vV"))?;
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not print its host")
}

fn libraries(binary: &Path) -> Result<String> {
    output(Command::new("ldd").arg(binary))
}

/// The libraries in `ldd`'s output that not every system has.
fn uncommon_libraries(libraries: &str) -> Vec<&str> {
    let names = libraries.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| !COMMON_LIBRARIES.iter().any(|known| name.contains(known))).collect()
}

fn size(file: &PathBuf) -> Result<String> {
    let bytes = fs::metadata(file)?.len();
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

fn output(command: &mut Command) -> Result<String> {
    let words = program::words(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{words}`"))?;
    if !output.status.success() {
        bail!("`{words}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_everywhere_is_noticed() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibgcc_s.so.1 => /lib/libgcc_s.so.1 (0x7f)\n\
                    \tlibssl.so.3 => /lib/libssl.so.3 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(uncommon_libraries(printed), ["libssl.so.3"]);
    }

    #[test]
    fn everything_that_is_packed_is_there() {
        for (from, _) in FILES {
            assert!(cargo::root().join(from).exists(), "{from}");
        }
    }
}
