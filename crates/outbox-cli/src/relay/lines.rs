//! Lines of JSON, for a daemon: what cannot be written is an outage, and no event's fault.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};
use outbox_transports::{Lines, Sink, open_to_append};
use tokio::sync::{Mutex, Notify};

/// Whether lines can still be written.
#[derive(Default)]
pub(crate) struct Gone {
    is_so: AtomicBool,
    told: Notify,
}

impl Gone {
    fn is_so(&self) -> bool {
        self.is_so.load(Ordering::Relaxed)
    }

    /// Waits until they cannot.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }
}

/// Notes when lines cannot be written any more.
struct Watched<S>(S, Arc<Gone>);

#[async_trait]
impl<S: Sink> Sink for Watched<S> {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        let put = self.0.put(lines).await;
        if put.is_err() {
            self.1.is_so.store(true, Ordering::Relaxed);
            self.1.told.notify_one();
        }
        put
    }
}

/// To standard output. Once nobody reads it, that is for good.
pub(crate) struct ToStdout {
    lines: Lines<Watched<tokio::io::Stdout>>,
    gone: Arc<Gone>,
}

impl ToStdout {
    pub(crate) fn new(gone: Arc<Gone>) -> Self {
        Self { lines: Lines::to(Watched(tokio::io::stdout(), gone.clone())), gone }
    }
}

#[async_trait]
impl Publisher for ToStdout {
    fn name(&self) -> &'static str {
        "stdout"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let published = self.lines.publish_batch(events).await;
        if self.gone.is_so() {
            Err(PublishError::unavailable("standard output is closed"))
        } else {
            published
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(!self.gone.is_so(), "standard output is closed")
    }
}

/// To the end of a file. One that was moved or deleted, as log rotation does, is made anew.
pub(crate) struct ToFile {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

#[derive(Clone)]
struct Open {
    lines: Arc<Lines<Watched<tokio::fs::File>>>,
    broken: Arc<Gone>,
    /// Which file it is, whatever it is called now.
    identity: (u64, u64),
}

async fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = tokio::fs::metadata(path).await?;
    Ok((metadata.dev(), metadata.ino()))
}

impl ToFile {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open: Mutex::default() }
    }

    /// The file, opened if need be.
    async fn open(&self) -> io::Result<Open> {
        let mut open = self.open.lock().await;
        if let Some(open) = &*open
            && !open.broken.is_so()
            && identity(&self.path).await.is_ok_and(|identity| identity == open.identity)
        {
            return Ok(open.clone());
        }
        let broken = Arc::new(Gone::default());
        let file = open_to_append(&self.path).await?;
        let lines = Arc::new(Lines::to(Watched(file, broken.clone())));
        let opened = Open { lines, broken, identity: identity(&self.path).await? };
        *open = Some(opened.clone());
        Ok(opened)
    }
}

#[async_trait]
impl Publisher for ToFile {
    fn name(&self) -> &'static str {
        "file"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let path = self.path.display();
        let open = self.open().await;
        let open = open.map_err(|e| PublishError::unavailable(format!("cannot open {path}: {e}")))?;
        match open.lines.publish_batch(events).await {
            Err(error) if open.broken.is_so() => {
                Err(PublishError::unavailable(format!("cannot write to {path}: {error}")))
            }
            published => published,
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let opened = self.open().await;
        opened.map_err(|error| Unavailable::new(format!("cannot open {}: {error}", self.path.display())))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outbox::Event;

    use super::*;

    fn event() -> Outgoing {
        Outgoing::new(Event::new("n").json(&1).build().unwrap())
    }

    fn lines(path: &Path) -> usize {
        std::fs::read_to_string(path).unwrap().lines().count()
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_opened_is_an_outage_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there");
        let file = ToFile::new(&path);
        assert!(file.health().await.is_err());
        assert!(file.publish_batch(&[event()]).await.unwrap_err().is_unavailable());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(file.health().await.is_ok());
        file.publish_batch(&[event()]).await.unwrap();
        assert_eq!(lines(&path), 1);
    }

    #[tokio::test]
    async fn a_file_that_was_moved_away_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("events"), folder.path().join("events.1"));
        let file = ToFile::new(&path);
        file.publish_batch(&[event(), event()]).await.unwrap();
        std::fs::rename(&path, &old).unwrap();
        file.publish_batch(&[event()]).await.unwrap();
        assert_eq!((lines(&old), lines(&path)), (2, 1));
    }

    #[tokio::test]
    async fn a_full_disk_is_an_outage() {
        let file = ToFile::new("/dev/full");
        let error = file.publish_batch(&[event()]).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().starts_with("cannot write to /dev/full: "), "{error}");
    }
}
