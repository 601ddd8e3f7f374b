//! MariaDB.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::home::{Home, is_root};
use super::{Recipe, mysql};
use crate::program;

pub(crate) struct Mariadb;

impl Recipe for Mariadb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn variable(&self) -> &'static str {
        super::MARIADB
    }

    /// The package `mariadb-server` is not needed: it only adds a system service.
    fn missing_packages(&self) -> Vec<&'static str> {
        let here = ["mariadbd", "mariadb-install-db", "my_print_defaults"]
            .iter()
            .all(|name| program::find(name).is_some());
        let mut missing = mysql::missing_openssl();
        if !here {
            missing.extend(["mariadb-server-core", "mariadb-client-core"]);
        }
        missing
    }

    fn prepare(&self, home: &mut Home) -> Result<()> {
        let mut install = home.command(&tool("mariadb-install-db")?);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", home.path("data").display()));
        if is_root()? {
            install.arg("--user=root");
        }
        home.run(install)
    }

    fn serve(&self, home: &Home, port: u16) -> Result<Command> {
        let mut mariadbd = home.command(&tool("mariadbd")?);
        mariadbd.arg("--no-defaults");
        mariadbd.args(mysql::serve_arguments(home, port)?);
        Ok(mariadbd)
    }

    fn ready(&self, home: &Home) -> Option<String> {
        mysql::greeting(home)
    }

    fn url(&self, port: u16) -> String {
        mysql::url(port)
    }
}

fn tool(name: &str) -> Result<PathBuf> {
    program::find(name).with_context(|| format!("MariaDB's {name} is not installed"))
}
