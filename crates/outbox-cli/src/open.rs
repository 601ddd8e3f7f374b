//! Opening what `--database` names, for commands that look or repair: it must be there already.

use std::path::Path;

use anyhow::{Result, anyhow};
use outbox::store::SharedStore;
use outbox::{Admin, DatabaseKind, LogAdmin, open_store};

use crate::database::{DatabaseUrl, Tables};

/// An outbox, and how to speak of it.
pub(crate) struct Place {
    pub(crate) store: SharedStore,
    pub(crate) url: DatabaseUrl,
    pub(crate) table: String,
}

impl Tables {
    /// Connects, and checks that the tables are of the right version.
    pub(crate) async fn open(&self) -> Result<Place> {
        let place = self.open_unchecked().await?;
        place.store.check_schema().await.map_err(|error| place.explain(error))?;
        Ok(place)
    }

    /// Connects, whatever is there.
    pub(crate) async fn open_unchecked(&self) -> Result<Place> {
        let (_, options) = self.options(2)?;
        let url = DatabaseUrl::parse(&self.database)?;
        is_there(&url)?;
        url.probe().await?;
        let store = open_store(url.secret(), &options).await.map_err(|error| url.explain_outbox(error))?;
        Ok(Place { store, url, table: self.table.clone() })
    }
}

/// A SQLite file that is not there would be made: whoever mistyped its name should hear of it instead.
pub(crate) fn is_there(url: &DatabaseUrl) -> Result<()> {
    if url.kind() != DatabaseKind::Sqlite {
        return Ok(());
    }
    let shown = url.to_string();
    let file = shown.trim_start_matches("sqlite:").trim_start_matches("//");
    if file.is_empty() || file.starts_with(':') || file.starts_with("file:") || Path::new(file).exists() {
        return Ok(());
    }
    Err(anyhow!(
        "there is no file {file:?}\n\
         hint: correct --database (or DATABASE_URL), or make the file and its tables with `outbox migrate`"
    ))
}

impl Place {
    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.store.clone())
    }

    pub(crate) fn log_admin(&self) -> LogAdmin {
        LogAdmin::new(self.store.clone())
    }

    /// What a library's error means for whoever called the command.
    pub(crate) fn explain(&self, error: outbox::Error) -> anyhow::Error {
        self.url.explain_outbox(error)
    }
}
