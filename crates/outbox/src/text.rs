//! Setting values: `${NAME}` for environment variables, and secrets that are never shown.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A text of a settings file. `${NAME}` stands for an environment variable, `${NAME:-text}` for one
/// that may be missing, `${file:PATH}` for the content of a file without its final line feed, `$$`
/// for a dollar sign. A relative path is resolved in systemd's credentials directory
/// (`LoadCredential=`), if there is one.
///
/// ```
/// use outbox::text::Text;
///
/// let text = Text::resolve("nats://${HOST_OF_NATS:-localhost}:4222").unwrap();
/// assert_eq!(text.as_str(), "nats://localhost:4222");
/// assert_eq!(Text::resolve("${NO_SUCH_THING}").unwrap_err(), "the environment variable NO_SUCH_THING is not set");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// Substitutes variables and files.
    pub fn resolve(written: &str) -> Result<Self, String> {
        resolve(written, |name| match name.strip_prefix("file:") {
            Some(path) => read(path, std::env::var("CREDENTIALS_DIRECTORY").ok().as_deref()).map(Some),
            None => variable(name),
        })
        .map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    /// Takes the text unchanged.
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::resolve(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A [`Text`] that must not be shown: a password, a token, a URL with either. Prints as `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Text);

impl Secret {
    /// The text itself. Must not be logged or displayed.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }
}

impl From<&str> for Secret {
    /// Takes the text unchanged.
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The original error would quote a password that is written as a number.
        let written =
            String::deserialize(deserializer).map_err(|_| serde::de::Error::custom("expected a text"))?;
        Text::resolve(&written).map(Self).map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Value of an environment variable.
fn variable(name: &str) -> Result<Option<String>, String> {
    // The standard library panics for such names.
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("invalid name of an environment variable".to_owned());
    }
    match std::env::var_os(name).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(_)) => Err(format!("the environment variable {name} is not UTF-8")),
    }
}

/// Maximum size of a file: secrets are short.
const MAX_FILE: u64 = 64 * 1_024;

/// The content of a file without its final line feed. Errors do not quote the content.
fn read(path: &str, folder: Option<&str>) -> Result<String, String> {
    use std::io::Read as _;
    let path = folder.map_or_else(|| path.into(), |folder| std::path::Path::new(folder).join(path));
    let mut text = String::new();
    let read = std::fs::File::open(&path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("cannot read the file {}: {error}", path.display())),
        Ok(_) if text.len() as u64 > MAX_FILE => {
            Err(format!("the file {} is too long for a setting", path.display()))
        }
        Ok(_) => {
            let line = text.strip_suffix('\n').unwrap_or(&text);
            Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
        }
    }
}

fn resolve(
    written: &str,
    variable: impl Fn(&str) -> Result<Option<String>, String>,
) -> Result<String, String> {
    let mut text = String::with_capacity(written.len());
    let mut rest = written;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let (named, after) = inner.split_once('}').ok_or("`${` without a `}`")?;
            let (name, default) = match named.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (named, None),
            };
            let found = match (variable(name), default) {
                (Err(_), Some(_)) => None,
                (found, _) => found?,
            };
            let value = found.filter(|value| !value.is_empty() || default.is_none());
            match value.as_deref().or(default) {
                Some(value) => text.push_str(value),
                None => return Err(format!("the environment variable {name} is not set")),
            }
            rest = after;
        } else {
            return Err("`$` without `{NAME}`; write `$$` for a dollar sign".to_owned());
        }
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(written: &str) -> Result<String, String> {
        let found = |name: &str| match name {
            "USER" => Some("ada".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        resolve(written, |name| Ok(found(name)))
    }

    #[test]
    fn environment_variables_are_substituted() {
        assert_eq!(with("plain").unwrap(), "plain");
        assert_eq!(with("${USER}@${HOST:-local}/${EMPTY}x${EMPTY:-y}").unwrap(), "ada@local/xy");
        assert_eq!(with("costs 5$$").unwrap(), "costs 5$");
        // The value of a variable is not substituted again.
        assert_eq!(resolve("${A}", |_| Ok(Some("${B}".to_owned()))).unwrap(), "${B}");
    }

    #[test]
    fn secrets_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "s3cret$\n").unwrap();
        let path = file.display();
        let resolve = |written: String| Text::resolve(&written).map(|text| text.0);
        assert_eq!(resolve(format!("ada:${{file:{path}}}@db")).unwrap(), "ada:s3cret$@db");
        assert_eq!(resolve(format!("${{file:{path}-not:-none}}")).unwrap(), "none");
        assert!(resolve(format!("${{file:{path}-not}}")).unwrap_err().contains("cannot read the file"));
        std::fs::write(&file, "x".repeat(70_000)).unwrap();
        assert!(resolve(format!("${{file:{path}}}")).unwrap_err().contains("too long"));
        std::fs::write(&file, "s3cret").unwrap();
        assert_eq!(read("password", folder.path().to_str()).unwrap(), "s3cret");
    }

    #[test]
    fn a_failed_substitution_is_reported() {
        for (written, error) in [
            ("${HOST}", "the environment variable HOST is not set"),
            ("${USER", "`${` without a `}`"),
            ("$USER", "`$` without `{NAME}`; write `$$` for a dollar sign"),
        ] {
            assert_eq!(with(written).unwrap_err(), error);
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(secret.expose(), "hunter2");
    }
}
