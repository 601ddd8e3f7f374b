//! Environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// The variables that settings are read from.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, Variable>);

/// The value of a variable.
#[derive(Clone, PartialEq, Eq)]
pub enum Variable {
    Text(String),
    NotUnicode,
}

/// Hides the value, which may be a password.
impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    pub fn get(&self, name: &str) -> Option<&Variable> {
        self.0.get(name)
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let value = |value: OsString| value.into_string().map_or(Variable::NotUnicode, Variable::Text);
        // All names of settings are Unicode.
        let named = |(name, text): (K, V)| Some((name.into().into_string().ok()?, value(text.into())));
        Self(variables.into_iter().filter_map(named).collect())
    }
}
