//! `[database]`: the database of the events.

use serde::Deserialize;
use toml::Spanned;

use super::count::Count;
use super::environment::{Environment, Variable};
use super::mistake::Mistake;
use super::reader::Reader;
use crate::sql::{DatabaseKind, StoreOptions, migration_sql};
use crate::text::{Secret, Text};

/// One database.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct DatabaseGroup {
    pub name: Option<Text>,
    pub url: Option<Spanned<Secret>>,
    pub direct_url: Option<Spanned<Secret>>,
    pub table: Option<Text>,
    pub schema: Option<Text>,
    pub connections: Option<Count>,
}

impl DatabaseGroup {
    pub fn table(&self) -> Option<&str> {
        self.table.as_ref().map(Text::as_str)
    }

    pub fn schema(&self) -> Option<&str> {
        self.schema.as_ref().map(Text::as_str)
    }

    /// The URL with its password.
    pub fn url(&self) -> Option<&str> {
        self.url.as_ref().map(|url| url.get_ref().expose())
    }

    /// Reports mistakes.
    pub fn check(&self, reader: &mut Reader<'_>) {
        if let Some(name) = &self.name
            && let Err(reason) = check_name(name.as_str())
        {
            reader.wrong_setting("database", "name", reason);
        }
        if let Some(url) = &self.url
            && let Err(reason) = check_url(url.get_ref().expose(), self.table(), self.schema())
        {
            reader.wrong_setting("database", "url", reason);
        }
        if let Some(direct) = &self.direct_url {
            let direct = direct.get_ref().expose();
            match check_url(direct, None, None) {
                Err(reason) => reader.wrong_setting("database", "direct-url", reason),
                Ok(Scheme::Postgres) => {}
                Ok(_) => {
                    reader.wrong_setting("database", "direct-url", "`direct-url` is for PostgreSQL only");
                }
            }
        }
    }

    /// Applies the settings to the options of the store.
    pub fn options(&self, mut options: StoreOptions) -> StoreOptions {
        if let Some(table) = self.table() {
            options = options.table(table);
        }
        if let Some(schema) = self.schema() {
            options = options.schema(schema);
        }
        if let Some(name) = &self.name {
            options = options.name(name.as_str());
        }
        if let Some(connections) = self.connections {
            options = options.max_connections(connections.get_u32());
        }
        if let Some(direct) = &self.direct_url {
            options = options.direct_url(direct.get_ref().expose());
        }
        options
    }
}

/// `DATABASE_URL`, which applies if the settings name no database, or a mistake in it.
pub fn url_of_environment(environment: &Environment) -> Result<Option<String>, Mistake> {
    let wrong = |reason: String| Mistake::of_variable("DATABASE_URL", reason);
    match environment.get("DATABASE_URL") {
        None => Ok(None),
        Some(Variable::NotUnicode) => Err(wrong("its value is not UTF-8".to_owned())),
        Some(Variable::Text(text)) => url_or_file(text).map(Some).map_err(wrong),
    }
}

/// A URL, or `@` and the path of a file with the URL, as secrets of containers and of systemd are
/// provided: `@/run/secrets/database-url`.
pub fn url_or_file(text: &str) -> Result<String, String> {
    match text.strip_prefix('@') {
        Some(path) => Text::resolve(&format!("${{file:{path}}}")).map(|url| url.as_str().to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// How to write a database URL, for messages.
pub const HOW: &str = "\
    as in sqlite:shop.db, postgres://user:password@host/database or mysql://user:password@host/database";

/// The kind of database that a URL names, whether or not this build has its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Sqlite,
    Postgres,
    MySql,
}

impl Scheme {
    /// The kind, if this build has the driver.
    pub fn kind(self) -> Option<DatabaseKind> {
        match self {
            #[cfg(feature = "sqlite")]
            Scheme::Sqlite => Some(DatabaseKind::Sqlite),
            #[cfg(feature = "postgres")]
            Scheme::Postgres => Some(DatabaseKind::Postgres),
            #[cfg(feature = "mysql")]
            Scheme::MySql => Some(DatabaseKind::MySql),
            #[allow(unreachable_patterns, reason = "a build with all drivers")]
            _ => None,
        }
    }

    /// The kind by the scheme of a URL; the scheme alone is enough. The error continues a sentence
    /// whose subject is the setting.
    pub fn of(url: &str) -> Result<Self, String> {
        let scheme = url.split(':').next().unwrap_or_default();
        let looks_like_one = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        match scheme {
            "sqlite" => Ok(Scheme::Sqlite),
            "postgres" | "postgresql" => Ok(Scheme::Postgres),
            "mysql" | "mariadb" => Ok(Scheme::MySql),
            _ if url[scheme.len()..].starts_with("://") && scheme.chars().all(looks_like_one) => {
                Err(format!("starts with {scheme:?}, which is no database known here: write it {HOW}"))
            }
            // Not shown: the start may be a user or a password.
            _ => Err(format!("does not say which kind of database it is: write it {HOW}")),
        }
    }

    /// The kind of a whole URL. The error continues a sentence whose subject is the setting.
    pub fn of_url(url: &str) -> Result<Self, String> {
        let kind = Self::of(url)?;
        let scheme = url.split(':').next().unwrap_or_default();
        // Directly after the scheme: text before a later `://` may be a password, and would be
        // shown as the scheme.
        if kind != Scheme::Sqlite && !url[scheme.len()..].starts_with("://") {
            return Err(format!("needs // and a server after {scheme}: {HOW}"));
        }
        Ok(kind)
    }
}

/// Checks a URL and the names of the tables, without connecting.
pub fn check_url(url: &str, table: Option<&str>, schema: Option<&str>) -> Result<Scheme, String> {
    let scheme = Scheme::of_url(url).map_err(|reason| format!("it {reason}"))?;
    if scheme == Scheme::Sqlite && schema.is_some() {
        return Err("SQLite has no schemas: leave `schema` out".to_owned());
    }
    let mut options = StoreOptions::default();
    if let Some(table) = table {
        options = options.table(table);
    }
    if let Some(schema) = schema {
        options = options.schema(schema);
    }
    // The names are checked where the statements are rendered.
    if let Some(kind) = scheme.kind() {
        migration_sql(kind, &options).map_err(|error| error.to_string())?;
    }
    Ok(scheme)
}

/// Checks the name of a database in log lines and metrics.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if (1..=64).contains(&name.chars().count()) && !name.chars().any(char::is_control) {
        Ok(())
    } else {
        Err("a name must have 1 to 64 characters, and no control characters")
    }
}
