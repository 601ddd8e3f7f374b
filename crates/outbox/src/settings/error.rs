//! The error of invalid settings.

use std::fmt;

use super::file::Mistake;

/// Invalid settings. Shows every mistake on its own line, with its location: file, line and column,
/// or the environment variable. Shows no secrets.
///
/// ```
/// use outbox::settings::Settings;
///
/// let error = Settings::from_toml("[poller]\nintervall = \"1s\"\n").unwrap_err();
/// assert_eq!(error.to_string(), "settings:2:1: there is no setting `intervall`: did you mean `interval`?");
/// ```
#[derive(Clone, Debug)]
pub struct SettingsError {
    file: String,
    found: Vec<Mistake>,
}

impl SettingsError {
    #[doc(hidden)]
    pub fn new(file: impl Into<String>, found: Vec<Mistake>) -> Self {
        Self { file: file.into(), found }
    }

    /// Every mistake with its location.
    pub fn mistakes(&self) -> impl Iterator<Item = String> + '_ {
        self.found.iter().map(|mistake| mistake.in_file(&self.file))
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mistakes().collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for SettingsError {}
