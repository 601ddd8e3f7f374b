//! Shared code of the tests of fleets: SQLite files, servers that misbehave, and a scripted
//! discovery.

#![allow(dead_code, missing_docs, reason = "each test binary uses its own share")]

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outbox::Fleet;
use outbox::fleet::{DatabaseState, Discovery, FleetDatabase};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// SQLite files that are deleted when this is dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.0.path().join(name).with_extension("db").display())
    }

    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub fn database(&self, name: &str) -> FleetDatabase {
        FleetDatabase::new(name, self.url(name))
    }
}

/// A table name that no other test uses.
pub fn table() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("f{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Answer of a discovery.
#[derive(Clone)]
pub enum Answer {
    Found(Vec<FleetDatabase>),
    Error,
    Panic,
}

/// A discovery that returns these answers one after another, and then repeats the last one.
pub struct Script(Mutex<VecDeque<Answer>>);

impl Script {
    pub fn of(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self(Mutex::new(answers.into_iter().collect()))
    }
}

#[async_trait::async_trait]
impl Discovery for Script {
    async fn discover(&self) -> Result<Vec<FleetDatabase>, Box<dyn StdError + Send + Sync>> {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        drop(answers);
        match answer {
            Some(Answer::Found(databases)) => Ok(databases),
            Some(Answer::Panic) => panic!("this discovery panics"),
            _ => Err("the directory is unavailable".into()),
        }
    }
}

pub fn state_of(fleet: &Fleet, name: &str) -> Option<DatabaseState> {
    fleet.databases().into_iter().find(|database| database.name == name).map(|database| database.state)
}

/// Port of a server that accepts connections and never answers.
pub async fn silent_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            silent.push(stream);
        }
    });
    port
}

/// A proxy between a fleet and a server. While it is shut, it refuses connections, and shutting it
/// closes the open ones.
pub struct Proxy {
    pub url: String,
    open: Arc<watch::Sender<bool>>,
}

impl Proxy {
    /// `url` names a host and a port.
    pub async fn to(url: &str) -> Self {
        let at = url.rfind('@').unwrap() + 1;
        let end = at + url[at..].find('/').unwrap();
        let server = url[at..end].to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = Arc::new(watch::Sender::new(true));
        let url = format!("{}{}{}", &url[..at], listener.local_addr().unwrap(), &url[end..]);
        let gate = open.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (server, mut gate) = (server.clone(), gate.subscribe());
                tokio::spawn(async move {
                    if !*gate.borrow() {
                        return;
                    }
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = gate.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { url, open }
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub fn shut(&self) {
        self.open.send_replace(false);
    }
}
