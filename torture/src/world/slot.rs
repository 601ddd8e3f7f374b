//! A slot: its process is killed and replaced, the slot stays.

use std::time::Duration;

use outbox_testbed::Proxy;
use rustix::process::Signal;

use crate::arena::Arena;
use crate::guard::{Process, in_words};
use crate::servers::{DatabaseKind, Server};

/// Kind of process in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessKind {
    /// Writes, and runs a relay: the hot path.
    HotWriter,
    /// Writes only.
    Writer,
    /// A library relay.
    Relay,
    /// The command `outbox relay`.
    Command,
    /// Reads from the broker.
    Reader,
}

impl ProcessKind {
    /// Kinds and numbers of processes in an arena.
    pub(super) fn of(arena: Arena) -> &'static [(Self, u32)] {
        match arena {
            Arena::Multi => &[(Self::Relay, 2), (Self::HotWriter, 1), (Self::Writer, 1)],
            Arena::Single => &[(Self::Relay, 1), (Self::HotWriter, 1)],
            Arena::Broker => &[(Self::Command, 2), (Self::Writer, 1), (Self::Reader, 1)],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::HotWriter => "hot",
            Self::Writer => "writer",
            Self::Relay => "relay",
            Self::Command => "outbox",
            Self::Reader => "reader",
        }
    }

    /// Whether the process claims events.
    pub(super) fn relays(self) -> bool {
        matches!(self, Self::HotWriter | Self::Relay | Self::Command)
    }

    /// Whether the process writes events.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::HotWriter | Self::Writer)
    }
}

pub(super) struct Slot {
    pub(super) arena: Arena,
    pub(super) kind: ProcessKind,
    /// First part of the names of the slot's processes.
    pub(super) name: String,
    /// The proxy between the process and the database.
    pub(super) proxy: Option<Proxy>,
    pub(super) starts: u32,
    process: Option<Process>,
}

impl Slot {
    /// Creates a slot, with a proxy to this port if the database is a server.
    pub(super) fn new(arena: Arena, kind: ProcessKind, number: u32, server: &Server, port: u16) -> Self {
        let proxy = (server.kind != DatabaseKind::Sqlite).then(|| Proxy::to(port));
        let name = format!("{arena}-{}-{number}", kind.name());
        Self { arena, kind, name, proxy, starts: 0, process: None }
    }

    pub(super) fn process_name(&self) -> String {
        format!("{}.{}", self.name, self.starts)
    }

    pub(super) fn next_name(&self) -> String {
        format!("{}.{}", self.name, self.starts + 1)
    }

    pub(super) fn started(&mut self, process: Process) {
        self.starts += 1;
        self.process = Some(process);
    }

    pub(super) fn forget(&mut self) {
        self.process = None;
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Exit status of the process, if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.process.as_mut()?.ended().map(in_words)
    }

    /// Ends the process and returns its exit status; `None` if there is no process.
    pub(super) async fn end(&mut self, signal: Signal) -> Option<String> {
        self.process.as_mut()?.end(signal, Duration::from_secs(30)).await.map(in_words)
    }
}
