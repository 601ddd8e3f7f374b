//! Settings from a file and from the environment: those of the daemon `outbox relay`, for an
//! application that embeds the outbox. Feature `settings`.
//!
//! One file configures both. The application reads the library's part: the database and its tables,
//! mode, workers, poll interval, leases, retries, purge, defaults for publishers of the log,
//! metrics. The part of the daemon alone (several databases, publishers, routes, topics, its HTTP
//! server) is read by the daemon only.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use outbox::settings::{Mode, Settings};
//! use outbox::{Context, Event};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("outbox.toml");
//! # let database = folder.path().join("shop.db");
//! std::fs::write(&path, format!(r#"
//!     mode = "single-node"
//!     migrate = true
//!
//!     [database]
//!     url = "sqlite:{}"
//!     table = "shop_event"
//!
//!     [retry]
//!     max-attempts = 3
//! "#, database.display()))?;
//!
//! let settings = Settings::from_file(&path)?;          // OUTBOX_RETRY_MAX_ATTEMPTS=5 overrides the file
//! assert_eq!(settings.mode(), Mode::SingleNode);
//! let outbox = settings.sqlite().await?;               // or postgres(), mysql()
//! let relay = outbox.relay(&settings).on_type("order.placed", async |_: Context| { /* … */ }).start().await?;
//! outbox.send(Event::new("order.placed").json(&42)).await?;
//! relay.stop().await?;
//! # Ok(()) }
//! ```
//!
//! An application with hooks, or with its own pool, starts from
//! [`OutboxBuilder::settings`](crate::OutboxBuilder::settings).

mod error;
#[doc(hidden)]
#[allow(missing_docs, reason = "not part of the stable API")]
pub mod file;

use std::ffi::OsString;
use std::path::Path;

use toml::Spanned;

pub use self::error::SettingsError;
use self::file::{
    DatabaseGroup, Environment, Groups, Mistake, OF_DAEMON, Reader, Scheme, no_such, top, url_of_environment,
};
use crate::error::{Error, Result, without_credentials};
use crate::outbox::{Outbox, OutboxBuilder};
pub use crate::relay::Mode;

/// The settings of an embedded outbox. The [module](self) has an example, the guide has all
/// settings.
#[derive(Clone, Debug)]
pub struct Settings {
    groups: Groups,
    database: DatabaseGroup,
}

impl Settings {
    /// Reads a file. The environment overrides it: `OUTBOX_POLLER_INTERVAL=1s` for `interval` of
    /// `[poller]`. If neither names a database, `DATABASE_URL` does.
    ///
    /// An error lists every mistake in the library's part, with its location. The daemon's part is
    /// not read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SettingsError> {
        let path = path.as_ref();
        let (name, text) = read_file(path)?;
        Self::read(&name, &text, &Environment::of_process())
    }

    /// Reads the environment alone.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::read("settings", "", &Environment::of_process())
    }

    /// Reads a text without the environment, except for the variables that the text names as
    /// `${NAME}`.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        Self::read("settings", text, &Environment::default())
    }

    /// Reads a text and these variables, which override it.
    ///
    /// ```
    /// use outbox::settings::{Mode, Settings};
    ///
    /// let settings = Settings::from_toml_and_env("mode = \"ordered\"", [("OUTBOX_MODE", "writer-only")])?;
    /// assert_eq!(settings.mode(), Mode::WriterOnly);
    /// # Ok::<_, outbox::settings::SettingsError>(())
    /// ```
    pub fn from_toml_and_env<N: Into<OsString>, V: Into<OsString>>(
        text: &str,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, SettingsError> {
        Self::read("settings", text, &variables.into_iter().collect())
    }

    fn read(name: &str, text: &str, environment: &Environment) -> Result<Self, SettingsError> {
        Self::parse(text, environment).map_err(|found| SettingsError::new(name, found))
    }

    fn parse(text: &str, environment: &Environment) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader::new(text, environment);
        // Nothing more can be checked in a text that is not TOML.
        if !reader.is_sound() {
            return Err(reader.into_mistakes().0);
        }
        let groups = Groups::read(&mut reader);
        let mut database: DatabaseGroup = reader.group("database");
        if database.url.is_none() {
            reader.given_by("database", "url", "DATABASE_URL");
            match url_of_environment(environment) {
                Ok(url) => database.url = url.map(|url| Spanned::new(0..0, url.as_str().into())),
                Err(mistake) => reader.mistakes.push(mistake),
            }
        }
        for (name, span) in reader.rest() {
            if !OF_DAEMON.contains(&name.as_str()) {
                reader.wrong(&span, no_such("setting", &name, &top()));
            }
        }
        groups.check(&mut reader);
        database.check(&mut reader);
        if reader.is_sound() { Ok(Self { groups, database }) } else { Err(reader.into_mistakes().0) }
    }

    /// The mode of the relay; [`Mode::MultiNode`] if not set.
    pub fn mode(&self) -> Mode {
        self.groups.mode()
    }

    /// The URL of the database, including its password, if the settings name one.
    pub fn database_url(&self) -> Option<&str> {
        self.database.url()
    }

    /// Opens the database, a SQLite file. Creates or upgrades the tables if `migrate` is set.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(&self) -> Result<Outbox<sqlx::Sqlite>> {
        let url = self.url_of(Scheme::Sqlite)?;
        self.migrated(OutboxBuilder::new().settings(self).sqlite(url).await?).await
    }

    /// Connects to the database, a PostgreSQL server. Creates or upgrades the tables if `migrate`
    /// is set.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<Outbox<sqlx::Postgres>> {
        let url = self.url_of(Scheme::Postgres)?;
        self.migrated(OutboxBuilder::new().settings(self).postgres(url).await?).await
    }

    /// Connects to the database, a MySQL or MariaDB server. Creates or upgrades the tables if
    /// `migrate` is set.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<Outbox<sqlx::MySql>> {
        let url = self.url_of(Scheme::MySql)?;
        self.migrated(OutboxBuilder::new().settings(self).mysql(url).await?).await
    }

    /// The URL, if it names this kind of database.
    fn url_of(&self, kind: Scheme) -> Result<&str> {
        let Some(url) = self.database.url() else {
            return Err(Error::setting(NO_DATABASE));
        };
        match Scheme::of_url(url) {
            Ok(found) if found == kind => Ok(url),
            found => {
                let found =
                    found.map_or_else(|reason| format!("it {reason}"), |kind| format!("it names {kind:?}"));
                let reason = format!("{found}, but {kind:?} was requested");
                Err(Error::Url { url: without_credentials(url), reason })
            }
        }
    }

    async fn migrated<DB: crate::Database>(&self, outbox: Outbox<DB>) -> Result<Outbox<DB>> {
        if self.groups.general.migrate == Some(true) {
            outbox.migrate().await?;
        }
        Ok(outbox)
    }

    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    pub(crate) fn database(&self) -> &DatabaseGroup {
        &self.database
    }
}

const NO_DATABASE: &str = "no database: write `url` under `[database]`, or set DATABASE_URL";

/// The name and the text of a settings file.
#[doc(hidden)]
pub fn read_file(path: &Path) -> Result<(String, String), SettingsError> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((name, text)),
        Err(error) => {
            let mistake = Mistake::of_file(format!("cannot be read: {error}"));
            Err(SettingsError::new(name, vec![mistake]))
        }
    }
}

#[cfg(test)]
mod tests;
