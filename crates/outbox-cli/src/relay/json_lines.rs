//! Publishers that write lines of JSON to standard output or a file. A failed write is an outage of
//! the destination, not a failure of an event.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};
use outbox_transports::{Lines, Sink, open_to_append};
use tokio::sync::{Mutex, Notify};

/// Flag that is set when lines can no longer be written.
#[derive(Default)]
pub(crate) struct BrokenPipe {
    is_broken: AtomicBool,
    changed: Notify,
}

impl BrokenPipe {
    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Waits until a write has failed.
    pub(crate) async fn wait_until_broken(&self) {
        self.changed.notified().await;
    }
}

/// A sink that sets the flag when a write fails.
struct MonitoredSink<S>(S, Arc<BrokenPipe>);

#[async_trait]
impl<S: Sink> Sink for MonitoredSink<S> {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        let put = self.0.put(lines).await;
        if put.is_err() {
            self.1.is_broken.store(true, Ordering::Relaxed);
            self.1.changed.notify_one();
        }
        put
    }
}

/// Publishes to standard output. Once its reader is gone, it stays unavailable.
pub(crate) struct StdoutPublisher {
    lines: Lines<MonitoredSink<tokio::io::Stdout>>,
    broken_pipe: Arc<BrokenPipe>,
}

impl StdoutPublisher {
    pub(crate) fn new(broken_pipe: Arc<BrokenPipe>) -> Self {
        Self { lines: Lines::to(MonitoredSink(tokio::io::stdout(), broken_pipe.clone())), broken_pipe }
    }
}

#[async_trait]
impl Publisher for StdoutPublisher {
    fn name(&self) -> &'static str {
        "stdout"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let published = self.lines.publish_batch(events).await;
        if self.broken_pipe.is_broken() {
            Err(PublishError::unavailable("standard output is closed"))
        } else {
            published
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(!self.broken_pipe.is_broken(), "standard output is closed")
    }
}

/// Appends to a file. Creates the file again if it was moved or deleted, as log rotation does.
pub(crate) struct FilePublisher {
    path: PathBuf,
    open: Mutex<Option<OpenFile>>,
}

#[derive(Clone)]
struct OpenFile {
    lines: Arc<Lines<MonitoredSink<tokio::fs::File>>>,
    broken_pipe: Arc<BrokenPipe>,
    /// Device and inode of the file, to detect that the path names another file now.
    identity: (u64, u64),
}

async fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = tokio::fs::metadata(path).await?;
    Ok((metadata.dev(), metadata.ino()))
}

impl FilePublisher {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open: Mutex::default() }
    }

    /// Returns the open file; opens it if necessary.
    async fn open(&self) -> io::Result<OpenFile> {
        let mut open = self.open.lock().await;
        if let Some(open) = &*open
            && !open.broken_pipe.is_broken()
            && identity(&self.path).await.is_ok_and(|identity| identity == open.identity)
        {
            return Ok(open.clone());
        }
        let broken_pipe = Arc::new(BrokenPipe::default());
        let file = open_to_append(&self.path).await?;
        let lines = Arc::new(Lines::to(MonitoredSink(file, broken_pipe.clone())));
        let opened = OpenFile { lines, broken_pipe, identity: identity(&self.path).await? };
        *open = Some(opened.clone());
        Ok(opened)
    }
}

#[async_trait]
impl Publisher for FilePublisher {
    fn name(&self) -> &'static str {
        "file"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let path = self.path.display();
        let open = self.open().await;
        let open = open.map_err(|e| PublishError::unavailable(format!("cannot open {path}: {e}")))?;
        match open.lines.publish_batch(events).await {
            Err(error) if open.broken_pipe.is_broken() => {
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
        let file = FilePublisher::new(&path);
        assert!(file.health().await.is_err());
        assert!(file.publish_batch(&[event()]).await.unwrap_err().is_unavailable());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(file.health().await.is_ok());
        file.publish_batch(&[event()]).await.unwrap();
        assert_eq!(lines(&path), 1);
    }

    #[tokio::test]
    async fn a_file_that_was_moved_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("events"), folder.path().join("events.1"));
        let file = FilePublisher::new(&path);
        file.publish_batch(&[event(), event()]).await.unwrap();
        std::fs::rename(&path, &old).unwrap();
        file.publish_batch(&[event()]).await.unwrap();
        assert_eq!((lines(&old), lines(&path)), (2, 1));
    }

    #[tokio::test]
    async fn a_full_disk_is_an_outage() {
        let file = FilePublisher::new("/dev/full");
        let error = file.publish_batch(&[event()]).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().starts_with("cannot write to /dev/full: "), "{error}");
    }
}
