//! The place of a process: who has it is killed and replaced, the place stays.

use std::time::Duration;

use outbox_testbed::Proxy;
use rustix::process::Signal;

use crate::arena::Arena;
use crate::guard::{Process, in_words};
use crate::servers::{DatabaseKind, Server};

/// What the process of a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessKind {
    /// Writes, and runs a relay as well: the hot path.
    HotWriter,
    /// Only writes.
    Writer,
    /// A relay of the library.
    Relay,
    /// The command `outbox relay`.
    Command,
    /// Reads from the broker.
    Reader,
}

impl ProcessKind {
    /// Who there is in an arena, and how many.
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

    /// Whether it holds events.
    pub(super) fn relays(self) -> bool {
        matches!(self, Self::HotWriter | Self::Relay | Self::Command)
    }

    /// Whether it writes them.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::HotWriter | Self::Writer)
    }
}

pub(super) struct Slot {
    pub(super) arena: Arena,
    pub(super) kind: ProcessKind,
    /// As the first part of its processes' names.
    pub(super) name: String,
    /// Its own way to the database.
    pub(super) proxy: Option<Proxy>,
    pub(super) starts: u32,
    process: Option<Process>,
}

impl Slot {
    /// On the way to this port, if the database is a server.
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

    /// How its process ended, if it did.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.process.as_mut()?.ended().map(in_words)
    }

    /// Ends its process. Says how that went, unless there is none.
    pub(super) async fn end(&mut self, signal: Signal) -> Option<String> {
        self.process.as_mut()?.end(signal, Duration::from_secs(30)).await.map(in_words)
    }
}
