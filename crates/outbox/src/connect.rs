//! Converts a database URL to sqlx's connect options: TLS that is verified unless the URL sets
//! another mode, and the pooler that may be in front of PostgreSQL.
//!
//! The connection to a server on another machine is encrypted, and the server's certificate and
//! name are verified: `sslmode=verify-full` (PostgreSQL) or `ssl-mode=VERIFY_IDENTITY` (MySQL,
//! MariaDB) applies unless the URL, or for PostgreSQL the variable `PGSSLMODE`, names another mode.
//! For a server on a loopback address or behind a socket file sqlx's default applies: encrypted if
//! the server offers it, unverified.
//!
//! | parameter of the URL | meaning |
//! | --- | --- |
//! | `sslrootcert=FILE` (PostgreSQL), `ssl-ca=FILE` (MySQL) | trust this authority as well as the public ones |
//! | `sslmode=disable` (PostgreSQL), `ssl-mode=DISABLED` (MySQL) | no TLS: for a network that you trust |
//! | `pooler=transaction` (PostgreSQL) | a pooler in transaction mode is in front: see [`Pooler`] |

use crate::error::{Error, Result, without_credentials};

/// Whether a connection pooler in transaction mode, such as PgBouncer, is in front of PostgreSQL.
///
/// Such a pooler assigns a server session to a connection for one transaction. Every statement then
/// runs in a transaction, unnamed, with `SET LOCAL` for its settings, and a relay polls: no
/// notification wakes it on inserts, unless it has a [direct
/// URL](crate::OutboxBuilder::direct_url).
///
/// The parameter `pooler` of the URL overrides the [setting](crate::OutboxBuilder::pooler).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pooler {
    /// `pooler=detect`: detected on the first connection, which costs a round trip. Poolers in
    /// session mode count as poolers. Not detected on a pool that the application provides: there
    /// this is [`None`](Pooler::None).
    #[default]
    Detect,
    /// `pooler=none`: no pooler, or one in session mode.
    None,
    /// `pooler=transaction`: a pooler in transaction mode.
    Transaction,
}

impl Pooler {
    /// The parameter `pooler` of a URL, if present.
    pub fn of_url(url: &str) -> Result<Option<Self>> {
        Ok(split(url)?.1)
    }
}

/// The connect options for a PostgreSQL URL.
#[cfg(feature = "postgres")]
pub fn postgres(url: &str) -> Result<sqlx::postgres::PgConnectOptions> {
    postgres_with(url, std::env::var("PGSSLMODE").ok().as_deref())
}

/// [`postgres`] with this value of the variable `PGSSLMODE`. A value that names no mode, such as
/// the empty text that a template leaves behind, counts as unset: sqlx would read it as `prefer`,
/// which verifies nothing.
#[cfg(feature = "postgres")]
fn postgres_with(url: &str, pgsslmode: Option<&str>) -> Result<sqlx::postgres::PgConnectOptions> {
    use sqlx::postgres::{PgConnectOptions, PgSslMode};

    let (plain, _) = split(url)?;
    let options: PgConnectOptions = plain.parse().map_err(|error| unreadable(url, &error))?;
    // Poolers refuse this start-up parameter. It affects floats as text, which PostgreSQL 12 and
    // later write in full without it.
    let options = options.extra_float_digits(None);
    let is_local = options.get_socket().is_some() || is_local(options.get_host());
    if is_local || names_tls_mode(&plain) {
        return Ok(options);
    }
    let mode = pgsslmode.and_then(|mode| mode.parse().ok()).unwrap_or(PgSslMode::VerifyFull);
    Ok(options.ssl_mode(mode))
}

/// The connect options for a URL of MySQL or MariaDB.
#[cfg(feature = "mysql")]
pub fn mysql(url: &str) -> Result<sqlx::mysql::MySqlConnectOptions> {
    use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

    let plain = url.replacen("mariadb:", "mysql:", 1);
    let options: MySqlConnectOptions = plain.parse().map_err(|error| unreadable(url, &error))?;
    if options.get_socket().is_some() || is_local(options.get_host()) || names_tls_mode(&plain) {
        return Ok(options);
    }
    Ok(options.ssl_mode(MySqlSslMode::VerifyIdentity))
}

/// Which part of the server's identity the URL chooses not to verify. `None` if everything is
/// verified, if the server is on this machine, or if the URL is invalid. Contains no secret.
pub fn unverified(url: &str) -> Option<&'static str> {
    match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            use sqlx::postgres::PgSslMode;

            let options = postgres(url).ok()?;
            if options.get_socket().is_some() || is_local(options.get_host()) {
                return None;
            }
            match options.get_ssl_mode() {
                PgSslMode::VerifyFull => None,
                PgSslMode::VerifyCa => Some("sslmode=verify-ca does not verify the server's name"),
                PgSslMode::Require => Some("sslmode=require does not verify the server's certificate"),
                PgSslMode::Prefer => Some("sslmode=prefer verifies nothing and may continue without TLS"),
                PgSslMode::Allow | PgSslMode::Disable => Some("sslmode=disable or allow: no TLS"),
            }
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            use sqlx::mysql::MySqlSslMode;

            let options = mysql(url).ok()?;
            if options.get_socket().is_some() || is_local(options.get_host()) {
                return None;
            }
            match options.get_ssl_mode() {
                MySqlSslMode::VerifyIdentity => None,
                MySqlSslMode::VerifyCa => Some("ssl-mode=VERIFY_CA does not verify the server's name"),
                MySqlSslMode::Required => Some("ssl-mode=REQUIRED does not verify the server's certificate"),
                MySqlSslMode::Preferred => {
                    Some("ssl-mode=PREFERRED verifies nothing and may continue without TLS")
                }
                MySqlSslMode::Disabled => Some("ssl-mode=DISABLED: no TLS"),
            }
        }
        _ => None,
    }
}

/// Advice for a connection that failed because the server offers no TLS, or none that can be
/// verified; `None` for other errors.
pub fn tls_advice(error: &sqlx::Error) -> Option<&'static str> {
    let is_about_tls = match error {
        sqlx::Error::Tls(_) => true,
        // Handshake errors are reported as stream errors.
        sqlx::Error::Io(error) => error.to_string().contains("peer certificate"),
        _ => false,
    };
    is_about_tls.then_some(
        "name the server's certificate authority in the URL with sslrootcert=FILE (PostgreSQL) or ssl-ca=FILE (MySQL); \
         on a network that you trust, turn TLS off with sslmode=disable or ssl-mode=DISABLED",
    )
}

/// Whether a host is this machine: a loopback address, `localhost`, or the directory of a socket.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn is_local(host: &str) -> bool {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = host.strip_suffix('.').unwrap_or(host);
    host.is_empty()
        || host.starts_with('/')
        || name.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether the URL sets a TLS mode.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn names_tls_mode(url: &str) -> bool {
    parameters(url).any(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        name == "sslmode" || name == "ssl-mode"
    })
}

fn parameters(url: &str) -> impl Iterator<Item = &str> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('#').next().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty())
}

/// A URL without its parameter `pooler`, and that parameter's value.
fn split(url: &str) -> Result<(String, Option<Pooler>)> {
    let mut pooler = None;
    let mut kept = Vec::new();
    for parameter in parameters(url) {
        let Some(value) = parameter.strip_prefix("pooler=") else {
            kept.push(parameter);
            continue;
        };
        pooler = Some(match value {
            "detect" => Pooler::Detect,
            "none" => Pooler::None,
            "transaction" => Pooler::Transaction,
            _ => {
                let reason = format!("pooler={value} is none of detect, none and transaction");
                return Err(Error::Url { url: without_credentials(url), reason });
            }
        });
    }
    if pooler.is_none() {
        return Ok((url.to_owned(), None));
    }
    let base = url.split('?').next().unwrap_or_default();
    let plain = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((plain, pooler))
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn unreadable(url: &str, error: &sqlx::Error) -> Error {
    Error::Url { url: without_credentials(url), reason: without_values(&error.to_string()) }
}

/// The driver's message without the values that it quotes: a password may be in the place of a
/// setting.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn without_values(message: &str) -> String {
    match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}\"…{}", &message[..first], &message[last..]),
        _ => message.to_owned(),
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;
    use sqlx::mysql::MySqlSslMode;
    use sqlx::postgres::PgSslMode;

    fn postgres_mode(url: &str) -> PgSslMode {
        postgres(url).unwrap().get_ssl_mode()
    }

    #[test]
    fn a_remote_server_is_verified_unless_the_url_sets_another_mode() {
        for url in [
            "postgres://ada:secret@db.example/shop",
            "postgres://10.0.0.7/shop",
            "postgres://[2001:db8::1]:6432/shop",
            // Resolvers treat these as loopback addresses; `is_local` does not.
            "postgres://127.1/shop",
            "postgres://localhost.example/shop",
            "postgres://notlocalhost/shop",
            // sqlx supports one host only.
            "postgres://localhost,db.example/shop",
            "postgres:///shop?host=db.example",
            "postgres://localhost/shop?hostaddr=10.0.0.7",
            "postgres://db.example/shop?application_name=sslmode",
            "postgres://db.example/sslmode=disable",
        ] {
            assert!(matches!(postgres_mode(url), PgSslMode::VerifyFull), "{url}");
            assert_eq!(unverified(url), None, "{url}");
            let url = url.replacen("postgres:", "mariadb:", 1);
            // Parameters of PostgreSQL only.
            if !url.contains("host") || url.contains("localhost.") || url.contains("notlocal") {
                let mode = mysql(&url).unwrap().get_ssl_mode();
                assert!(matches!(mode, MySqlSslMode::VerifyIdentity), "{url}");
            }
        }
    }

    #[test]
    fn a_server_on_this_machine_need_not_have_a_certificate() {
        for url in [
            "postgres://localhost/shop",
            "postgres://LocalHost./shop",
            "postgres://127.0.0.1:5432/shop",
            "postgres://127.0.0.2/shop",
            "postgres://[::1]/shop",
            "postgres://[::ffff:127.0.0.1]/shop",
            "postgres://%2Fvar%2Frun%2Fpostgresql/shop",
            "postgres://db.example/shop?host=/var/run/postgresql",
            "postgres:///shop?host=localhost",
        ] {
            assert!(matches!(postgres_mode(url), PgSslMode::Prefer), "{url}");
            assert_eq!(unverified(url), None, "{url}");
        }
        for url in
            ["mysql://127.0.0.2/shop", "mysql://[::1]/shop", "mysql://db.example/shop?socket=/run/m.sock"]
        {
            assert!(matches!(mysql(url).unwrap().get_ssl_mode(), MySqlSslMode::Preferred), "{url}");
            assert_eq!(unverified(url), None, "{url}");
        }
    }

    #[test]
    fn a_mode_in_the_url_applies_and_is_reported() {
        let weak = "postgres://ada:secret@db.example/shop?application_name=x&sslmode=require";
        assert!(matches!(postgres_mode(weak), PgSslMode::Require));
        assert!(unverified(weak).unwrap().contains("require"));
        let none = "postgres://db.example/shop?ssl-mode=disable";
        assert!(matches!(postgres_mode(none), PgSslMode::Disable));
        assert!(unverified(none).is_some());
        assert!(unverified("postgres://db.example/shop?sslmode=verify-ca").is_some());
        assert_eq!(unverified("postgres://db.example/shop?sslmode=verify-full"), None);
        assert_eq!(unverified("postgres://localhost/shop?sslmode=disable"), None);

        let weak = "mysql://ada:secret@db.example/shop?ssl-mode=PREFERRED";
        assert!(matches!(mysql(weak).unwrap().get_ssl_mode(), MySqlSslMode::Preferred));
        assert!(unverified(weak).is_some());
        assert_eq!(unverified("sqlite:shop.db"), None);
        assert_eq!(unverified("postgres://db.example:port/"), None, "the URL is invalid");
    }

    #[test]
    fn only_a_valid_mode_in_the_environment_applies() {
        let mode = |url, value| postgres_with(url, value).unwrap().get_ssl_mode();
        let remote = "postgres://db.example/shop";
        for value in [None, Some(""), Some(" "), Some("verify_full"), Some("VERIFY_IDENTITY"), Some("off")] {
            assert!(matches!(mode(remote, value), PgSslMode::VerifyFull), "{value:?}");
        }
        assert!(matches!(mode(remote, Some("require")), PgSslMode::Require));
        assert!(matches!(mode(remote, Some("Disable")), PgSslMode::Disable));
        let url = "postgres://db.example/shop?sslmode=verify-ca";
        assert!(matches!(mode(url, Some("disable")), PgSslMode::VerifyCa), "the URL has precedence");
    }

    #[test]
    fn the_pooler_is_read_from_the_url_and_not_passed_on() {
        for (url, plain, pooler) in [
            ("postgres://db/shop", "postgres://db/shop", None),
            ("postgres://db/shop?pooler=transaction", "postgres://db/shop", Some(Pooler::Transaction)),
            ("postgres://db/x?a=1&pooler=none&b=2", "postgres://db/x?a=1&b=2", Some(Pooler::None)),
            ("postgres://db/x?pooler=detect", "postgres://db/x", Some(Pooler::Detect)),
            ("postgres://db/pooler=none", "postgres://db/pooler=none", None),
        ] {
            assert_eq!(split(url).unwrap(), (plain.to_owned(), pooler), "{url}");
        }
        let error = Pooler::of_url("postgres://ada:secret@db/x?pooler=statement").unwrap_err().to_string();
        assert!(error.contains("pooler=statement") && !error.contains("secret"), "{error}");
    }
}
