//! Opens the outbox that `--database` names, for commands that inspect or repair: its database must
//! exist.

use std::path::Path;

use anyhow::{Result, anyhow};
use outbox::store::SharedStore;
use outbox::{Admin, DatabaseKind, LogAdmin, open_store};

use crate::database::{DatabaseUrl, Tables};

/// An opened outbox, with its URL and table name for messages.
pub(crate) struct Target {
    pub(crate) store: SharedStore,
    pub(crate) url: DatabaseUrl,
    pub(crate) table: String,
}

impl Tables {
    /// Connects, and checks the schema version.
    pub(crate) async fn open(&self) -> Result<Target> {
        let target = self.open_unchecked().await?;
        target.store.check_schema().await.map_err(|error| target.explain(error))?;
        Ok(target)
    }

    /// Connects without a check of the schema version.
    pub(crate) async fn open_unchecked(&self) -> Result<Target> {
        let (_, options) = self.options(2)?;
        let url = DatabaseUrl::parse(&self.database)?;
        require_sqlite_file(&url)?;
        url.probe().await?;
        let store = open_store(url.secret(), &options).await.map_err(|error| url.explain_outbox(error))?;
        Ok(Target { store, url, table: self.table.clone() })
    }
}

/// Fails if the URL names a SQLite file that does not exist: opening it would create the file, and
/// hide a mistyped name.
pub(crate) fn require_sqlite_file(url: &DatabaseUrl) -> Result<()> {
    if url.kind() != DatabaseKind::Sqlite {
        return Ok(());
    }
    let shown = url.to_string();
    let file = shown.trim_start_matches("sqlite:").trim_start_matches("//");
    if file.is_empty() || file.starts_with(':') || file.starts_with("file:") || Path::new(file).exists() {
        return Ok(());
    }
    Err(anyhow!(
        "the file {file:?} does not exist\n\
         hint: correct --database (or DATABASE_URL), or create the file and its tables with `outbox migrate`"
    ))
}

impl Target {
    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.store.clone())
    }

    pub(crate) fn log_admin(&self) -> LogAdmin {
        LogAdmin::new(self.store.clone())
    }

    /// Turns an error of the library into one with a hint for the user of the command.
    pub(crate) fn explain(&self, error: outbox::Error) -> anyhow::Error {
        self.url.explain_outbox(error)
    }
}
