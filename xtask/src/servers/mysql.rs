//! MySQL 9, which only Debian unstable has: its packages and their C library are unpacked below
//! target/, and nothing is installed. MariaDB shares its protocol and most of its options.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outbox_testbed::Certificates;

use super::home::{Home, is_root};
use super::{Recipe, apt};
use crate::{cargo, program};

pub(crate) struct Mysql;

impl Recipe for Mysql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn variable(&self) -> &'static str {
        "OUTBOX_TEST_MYSQL"
    }

    fn by_default(&self) -> bool {
        false
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        missing_openssl()
    }

    fn fetch(&self, may_download: bool) -> Result<()> {
        if unpacked().exists() {
            return Ok(());
        }
        ensure!(may_download, "MySQL is not in {}; run once without --no-install", unpacked().display());
        ensure!(cfg!(target_arch = "x86_64"), "MySQL can be unpacked on x86_64 only; leave --mysql out");
        let began = Instant::now();
        eprintln!("downloading MySQL from Debian unstable into {}", unpacked().display());
        apt::unpack_from_unstable("mysql-server-core", &unpacked())?;
        eprintln!("downloaded MySQL ({:.1} s)", began.elapsed().as_secs_f32());
        Ok(())
    }

    fn prepare(&self, home: &mut Home) -> Result<()> {
        let mut initialize = mysqld(home);
        initialize.arg("--initialize-insecure");
        initialize.arg(format!("--datadir={}", home.path("data").display()));
        if is_root()? {
            initialize.arg("--user=root");
        }
        home.run(initialize)
    }

    fn serve(&self, home: &Home, port: u16) -> Result<Command> {
        let mut mysqld = mysqld(home);
        mysqld.args(serve_arguments(home, port)?);
        mysqld.args(["--mysqlx=OFF", "--secure-file-priv=NULL"]);
        mysqld.arg("--sync-binlog=0");
        Ok(mysqld)
    }

    fn ready(&self, home: &Home) -> Option<String> {
        greeting(home)
    }

    fn url(&self, port: u16) -> String {
        url(port)
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("mysql://root@127.0.0.1:{port}/test")
}

/// The package openssl, if it is not installed: it makes the certificates.
pub(crate) fn missing_openssl() -> Vec<&'static str> {
    if program::find("openssl").is_some() { Vec::new() } else { vec!["openssl"] }
}

/// Arguments that MySQL and MariaDB share. The init file runs before the first connection is
/// accepted. The certificate is issued by a test authority, whose file tests find by `@@ssl_ca`.
pub(crate) fn serve_arguments(home: &Home, port: u16) -> Result<Vec<String>> {
    let init_file = home.path("init.sql");
    fs::write(&init_file, "CREATE DATABASE IF NOT EXISTS test;\n")?;
    let certificates = Certificates::make(&home.folder);
    let (certificate, key) = &certificates.server;
    let mut arguments = vec![
        format!("--ssl-ca={}", certificates.ca.display()),
        format!("--ssl-cert={}", certificate.display()),
        format!("--ssl-key={}", key.display()),
        format!("--datadir={}", home.path("data").display()),
        format!("--socket={}", socket(home).display()),
        format!("--pid-file={}", home.path("pid").display()),
        format!("--init-file={}", init_file.display()),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--max-connections=300".to_owned(),
        // Every test creates two dozen tables; without this the server would wait for the disk
        // several times for each.
        "--innodb-flush-method=nosync".to_owned(),
        "--innodb-flush-log-at-trx-commit=0".to_owned(),
        "--innodb-doublewrite=0".to_owned(),
    ];
    if is_root()? {
        arguments.push("--user=root".to_owned());
    }
    Ok(arguments)
}

/// Reads the version from the handshake packet: length (3 bytes), sequence, protocol 10, text, NUL.
/// Over the socket in the server's folder, because another server may answer on the port.
pub(crate) fn greeting(home: &Home) -> Option<String> {
    let stream = UnixStream::connect(socket(home)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut stream = BufReader::new(stream);
    let mut head = [0; 5];
    stream.read_exact(&mut head).ok()?;
    if head[4] != 10 {
        return None;
    }
    let mut version = Vec::new();
    stream.read_until(0, &mut version).ok()?;
    Some(short_version(&String::from_utf8_lossy(&version)))
}

/// MariaDB 10 prefixes `5.5.5-`, for clients that expect MySQL's version numbers.
fn short_version(greeted: &str) -> String {
    let version = greeted.strip_prefix("5.5.5-").unwrap_or(greeted);
    version.split(['-', '\0']).next().unwrap_or(version).to_owned()
}

fn socket(home: &Home) -> PathBuf {
    home.path("socket")
}

fn unpacked() -> PathBuf {
    cargo::target().join("servers/mysql")
}

/// Runs the unpacked server with the unpacked loader and libraries.
fn mysqld(home: &Home) -> Command {
    let root = unpacked();
    let at = |path: &str| root.join(path).display().to_string();
    let mut command = home.command(Path::new(&at("usr/lib64/ld-linux-x86-64.so.2")));
    command.args([
        "--library-path",
        &format!("{}:{}", at("usr/lib/x86_64-linux-gnu"), at("usr/lib/mysql/private")),
    ]);
    command.args([&at("usr/sbin/mysqld"), "--no-defaults"]);
    command.args([
        format!("--basedir={}", at("usr")),
        format!("--lc-messages-dir={}", at("usr/share/mysql")),
        format!("--character-sets-dir={}", at("usr/share/mysql/charsets")),
        format!("--plugin-dir={}", at("usr/lib/mysql/plugin")),
    ]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_no_prefix_or_suffix() {
        assert_eq!(short_version("5.5.5-10.11.19-MariaDB-0+deb12u1\0"), "10.11.19");
        assert_eq!(short_version("9.7.0-1\0"), "9.7.0");
        assert_eq!(short_version("11.8.2\0"), "11.8.2");
    }
}
