//! Credentials of the NATS publisher.

use async_nats::{Auth, AuthError, ServerAddr};
use percent_encoding::percent_decode_str;

use super::NatsSettings;
use crate::{PublisherSettingsError, Secret};

/// Credentials as configured.
#[derive(Clone)]
pub(super) enum Credentials {
    None,
    User { name: String, password: Secret },
    Token(Secret),
    File(String),
}

/// Parses the server addresses, and the credentials in the URL.
pub(super) fn servers(url: &Secret) -> Result<(Vec<ServerAddr>, Credentials), PublisherSettingsError> {
    let mut credentials = Credentials::None;
    let mut servers = Vec::new();
    for entry in url.expose().split(',').map(str::trim) {
        // The errors of the parsers are dropped, since they could repeat a part of the URL.
        let invalid = || PublisherSettingsError::url("not a NATS address: write nats://host:4222");
        let address: ServerAddr = entry.parse().map_err(|_| invalid())?;
        if !matches!(address.scheme(), "nats" | "tls") || address.host().is_empty() {
            return Err(invalid());
        }
        let decoded =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| invalid());
        match (address.username(), address.password()) {
            (Some(name), Some(password)) => {
                let password = decoded(password)?.as_str().into();
                credentials = Credentials::User { name: decoded(name)?, password };
            }
            (Some(token), None) => credentials = Credentials::Token(decoded(token)?.as_str().into()),
            (None, _) => {}
        }
        let mut bare = address.into_inner();
        // With a missing slash, as in `tls:/ada:hunter2@one`, the password is part of the path and
        // would be shown.
        if !matches!(bare.path(), "" | "/") || bare.query().is_some() || bare.fragment().is_some() {
            return Err(invalid());
        }
        bare.set_username("").and_then(|()| bare.set_password(None)).map_err(|()| invalid())?;
        servers.push(ServerAddr::from_url(bare).map_err(|_| invalid())?);
    }
    Ok((servers, credentials))
}

/// Credentials with the contents of the file.
pub(super) enum LoadedCredentials {
    Plain(Auth),
    Signed { jwt: String, key: Box<nkeys::KeyPair> },
}

/// Reason why a credentials file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsFileError {
    #[error("credentials_file `{path}`: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("credentials_file `{path}` is not a .creds file with a JWT and a seed")]
    Content { path: String },
}

impl Credentials {
    /// Credentials of the settings; `None` if there are none.
    pub(super) fn from_settings(settings: &NatsSettings) -> Result<Option<Self>, PublisherSettingsError> {
        if settings.password.is_some() && settings.user.is_none() {
            return Err(PublisherSettingsError::Conflict {
                setting: "password",
                other: "user",
                reason: "needs `user` as well",
            });
        }
        let user = settings.user.as_ref().map(|user| Self::User {
            name: user.as_str().to_owned(),
            password: settings.password.clone().unwrap_or_default(),
        });
        let token = settings.token.clone().map(Self::Token);
        let file = settings.credentials_file.as_ref().map(|file| Self::File(file.as_str().to_owned()));
        let given = [("user", user), ("token", token), ("credentials_file", file)];
        let mut given = given.into_iter().filter_map(|(setting, credentials)| Some((setting, credentials?)));
        let Some((other, credentials)) = given.next() else { return Ok(None) };
        match given.next() {
            None => Ok(Some(credentials)),
            Some((setting, _)) => Err(PublisherSettingsError::Conflict {
                setting,
                other,
                reason: "set only one of `user`, `token` and `credentials_file`",
            }),
        }
    }

    /// Reads the file, if the credentials are in one.
    pub(super) async fn load(&self) -> Result<LoadedCredentials, CredentialsFileError> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::User { name, password } => {
                auth.username = Some(name.clone());
                auth.password = Some(password.expose().to_owned());
            }
            Self::Token(token) => auth.token = Some(token.expose().to_owned()),
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                let text =
                    text.map_err(|source| CredentialsFileError::Read { path: path.clone(), source })?;
                let invalid = || CredentialsFileError::Content { path: path.clone() };
                let jwt = section(&text, "NATS USER JWT").ok_or_else(invalid)?.to_owned();
                let seed = section(&text, "USER NKEY SEED").ok_or_else(invalid)?;
                let key = nkeys::KeyPair::from_seed(seed).map_err(|_| invalid())?;
                return Ok(LoadedCredentials::Signed { jwt, key: Box::new(key) });
            }
        }
        Ok(LoadedCredentials::Plain(auth))
    }
}

impl LoadedCredentials {
    pub(super) fn sign(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        match self {
            Self::Plain(auth) => Ok(auth.clone()),
            Self::Signed { jwt, key } => {
                let signature = key.sign(nonce).map_err(|_| AuthError::new("cannot sign"))?;
                let mut auth = Auth::new();
                auth.jwt = Some(jwt.clone());
                auth.signature = Some(signature);
                Ok(auth)
            }
        }
    }
}

/// The line below `-----BEGIN NAME-----`.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("BEGIN {name}");
    let mut lines = text.lines().skip_while(|line| !line.contains(&begin)).skip(1);
    lines.next().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proptests::all_texts;

    #[test]
    fn credentials_are_removed_from_the_address() {
        let (servers, credentials) = servers(&"nats://ada:p%40ss@one:4222, tls://two".into()).unwrap();
        let shown: Vec<&str> = servers.iter().map(ServerAddr::as_url_str).collect();
        assert_eq!(shown, ["nats://one:4222", "tls://two"]);
        let Credentials::User { name, password } = credentials else { panic!("a user") };
        assert_eq!((name.as_str(), password.expose()), ("ada", "p@ss"));
    }

    #[test]
    fn a_user_alone_is_a_token() {
        let (_, Credentials::Token(token)) = servers(&"nats://t0ken@one".into()).unwrap() else {
            panic!("a token")
        };
        assert_eq!(token.expose(), "t0ken");
    }

    #[test]
    fn an_invalid_address_is_not_shown() {
        for url in [
            "nats://ada:hunter2@",
            "http://ada:hunter2@one",
            "nats://ada:hunter2@one:port",
            "nats://a, ",
            "tls:/ada:hunter2@one",
            "nats://one/hunter2",
            "nats://one?password=hunter2",
        ] {
            let error = servers(&url.into()).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.to_string(), "url: not a NATS address: write nats://host:4222");
            assert!(!all_texts(&error).contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn only_one_kind_of_credentials_is_allowed() {
        let mut settings = NatsSettings::new("nats://one", "s".parse().unwrap());
        settings.password = Some("hunter2".into());
        let error = Credentials::from_settings(&settings).err().unwrap();
        assert_eq!(error.to_string(), "password: needs `user` as well");
        settings.user = Some("ada".into());
        settings.token = Some("t".into());
        let error = Credentials::from_settings(&settings).err().unwrap();
        assert_eq!(error.to_string(), "token: set only one of `user`, `token` and `credentials_file`");
        assert!(matches!(error, PublisherSettingsError::Conflict { other: "user", .. }), "{error:?}");
    }

    #[test]
    fn the_sections_of_a_credentials_file_are_found() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\n\
                    -----BEGIN USER NKEY SEED-----\nSUAX\n------END USER NKEY SEED------\n";
        assert_eq!(section(text, "NATS USER JWT"), Some("eyJ0"));
        assert_eq!(section(text, "USER NKEY SEED"), Some("SUAX"));
        assert_eq!(section("", "USER NKEY SEED"), None);
    }
}
