//! The setting `mode`.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::mistake::no_such;
use crate::relay::Mode;

/// A mode in a file, a variable or a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenMode(pub Mode);

/// The modes by their names.
pub const MODES: [(&str, Mode); 5] = [
    ("single-node", Mode::SingleNode),
    ("multi-node", Mode::MultiNode),
    ("ordered", Mode::Ordered),
    ("writer-only", Mode::WriterOnly),
    ("log", Mode::LogOnly),
];

impl Default for WrittenMode {
    /// Safe for any number of relays.
    fn default() -> Self {
        Self(Mode::MultiNode)
    }
}

impl WrittenMode {
    /// The name in the file.
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(_, mode)| *mode == self.0).map_or("", |(name, _)| name)
    }
}

impl FromStr for WrittenMode {
    type Err = String;

    /// Accepts `multi-node`, `multi_node` and `MULTI_NODE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let written = text.replace('_', "-").to_ascii_lowercase();
        match MODES.iter().find(|(name, _)| *name == written) {
            Some((_, mode)) => Ok(Self(*mode)),
            None => Err(no_such("value", text, &MODES.map(|(name, _)| name))),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for WrittenMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
