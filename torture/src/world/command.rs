//! Builds the command line of a slot's process.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;

use anyhow::Result;

use super::World;
use super::slot::{ProcessKind, Slot};
use crate::faults::Fault;
use crate::receiver::Receiver;
use crate::roles::reader::SUBJECT;

impl World {
    pub(super) fn command(&self, slot: &Slot) -> Result<Command> {
        let url = self.url_of(slot);
        let mut command = if slot.kind == ProcessKind::Command {
            let config = self.guard.folder().join(format!("{}.toml", slot.name));
            std::fs::write(&config, self.config(slot, &url))?;
            let mut command = Command::new(&self.settings.outbox);
            command.args(["relay", "--wait", "60s", "--log", "warn", "--config"]).arg(config);
            command
        } else {
            self.role(slot, &url)
        };
        if let (Some(library), true) = (&self.settings.faketime, slot.kind.relays()) {
            let file = self.clock_file(slot);
            std::fs::write(&file, "+0")?;
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", file);
            // Monotonic timers are not shifted, as when an administrator sets a machine's clock.
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        Ok(command)
    }

    /// File that holds the clock offset of a slot's process.
    pub(super) fn clock_file(&self, slot: &Slot) -> PathBuf {
        self.guard.folder().join(format!("{}.clock", slot.name))
    }

    fn url_of(&self, slot: &Slot) -> String {
        let from = self.direct.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap_or_default();
        match &slot.proxy {
            Some(proxy) => self.direct.replace(&format!(":{from}/"), &format!(":{}/", proxy.port())),
            None => self.direct.clone(),
        }
    }

    fn role(&self, slot: &Slot, url: &str) -> Command {
        let role = match slot.kind {
            ProcessKind::HotWriter => "hot-writer",
            ProcessKind::Writer => "writer",
            ProcessKind::Reader => "reader",
            ProcessKind::Relay | ProcessKind::Command => "relay",
        };
        let settings = &self.settings;
        let mut command = Command::new(&settings.program);
        let seed = settings.seed.wrapping_mul(1_000).wrapping_add(u64::from(slot.starts)) ^ hash(&slot.name);
        command.args(["process", role, "--process", &slot.next_name(), "--arena", slot.arena.name()]);
        command.args(["--database", url, "--prefix", &self.prefix, "--seed", &seed.to_string()]);
        command.args(["--generation", &self.generation.load(Ordering::SeqCst).to_string()]);
        command.args(["--rate", &settings.rate.to_string(), "--broker", &self.broker_url]);
        command.arg("--folder").arg(&settings.folder);
        command.args(["--lease", &settings.lease.as_millis().to_string()]);
        if settings.slow {
            command.arg("--slow");
        }
        if settings.faults.contains(&Fault::Panic) {
            command.arg("--panics");
        }
        if settings.faults.contains(&Fault::Abort) {
            command.arg("--aborts");
        }
        if self.receiver.is_some() {
            command.arg("--hooks");
        }
        command.env("RUST_BACKTRACE", "0");
        command
    }

    fn config(&self, slot: &Slot, url: &str) -> String {
        format!(
            r#"
mode = "multi-node"
completion = "delete"
on-dead = "skip"
[database]
url = "{url}"
table = "{table}"
[dispatcher]
queue-capacity = 100
[claim-locking]
lease = "{lease}ms"
[poller]
interval = "300ms"
[retry]
base-delay = "50ms"
max-delay = "1s"
max-attempts = 100000
{hook}
[publishers.broker.nats]
url = "{broker}"
subject = "{SUBJECT}"
ack-timeout = "2s"
[[routes]]
to = "broker"
"#,
            table = slot.arena.table(&self.prefix),
            lease = self.settings.lease.as_millis(),
            broker = self.broker_url,
            hook = self.receiver.as_ref().map(hook).unwrap_or_default(),
        )
    }
}

/// Publisher and route of events that go to a webhook.
fn hook(receiver: &Receiver) -> String {
    format!(
        r#"
[publishers.hook.webhook]
url = "{url}"
allow = ["127.0.0.1"]
timeout = "2s"
[[routes]]
type = "hook"
to = "hook"
"#,
        url = receiver.url()
    )
}

/// FNV-1a: the same in every run, unlike the standard library's hash.
fn hash(text: &str) -> u64 {
    text.bytes().fold(14_695_981_039_346_656_037, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    })
}
