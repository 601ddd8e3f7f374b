//! Counts operations while the histories grow.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::history::files;

/// Counts so far, and how much of each file is read.
#[derive(Debug, Default)]
pub(super) struct Tail {
    read: HashMap<PathBuf, u64>,
    committed: usize,
    done: usize,
    failed: usize,
    arrived: usize,
}

impl Tail {
    /// Reads the lines that were appended since the last call.
    pub(super) fn read(&mut self, folder: &Path) -> Result<()> {
        for path in files(folder)? {
            let from = self.read.entry(path.clone()).or_default();
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(*from))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            *from += whole as u64;
            for line in text[..whole].lines() {
                self.committed += usize::from(line.contains(r#""how":"committed""#));
                self.done += usize::from(line.contains(r#""how":"done""#));
                self.failed += usize::from(line.contains(r#""how":"failed""#));
                self.arrived += usize::from(line.contains(r#""what":"arrived""#));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, done, failed, arrived, .. } = self;
        write!(f, "{committed} transactions committed; {done} handled, {failed} failed; {arrived} arrived")
    }
}
