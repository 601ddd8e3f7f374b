//! Other job queues, measured on the same server in the same run; `bench/peers/README.md` describes
//! each and its settings.
//!
//! A peer that cannot be installed, fails or takes too long becomes a [`NotRun`] with its reason;
//! the benchmark continues.

mod line;
mod prepare;
mod process;
mod scratch;

use std::time::Duration;

pub(crate) use line::{Figure, Measured};

use prepare::Program;
use scratch::Scratch;

/// Result of one peer for one figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// The peer was measured.
    Measured(Measured),
    /// The peer was not measured, with the reason.
    NotRun(NotRun),
}

/// A peer without a figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NotRun {
    /// Name of the peer in its registry.
    pub(crate) peer: String,
    /// One line that completes the sentence "not run: …".
    pub(crate) reason: String,
}

/// The peers of this run.
pub(crate) struct Peers {
    programs: Vec<Program>,
    not_run: Vec<NotRun>,
    limit: Duration,
    quick: bool,
}

/// Names of the peers.
pub(crate) const NAMES: [&str; 7] =
    ["graphile-worker", "pg-boss", "graphile_worker", "apalis", "sqlxmq", "awa", "procrastinate"];

impl Peers {
    /// Installs and builds the named peers, or all if `which` is empty, into `target/peers`. This
    /// takes minutes the first time; later only changes are installed. A quick run gives each peer
    /// less time, and the slow ones a smaller backlog.
    pub(crate) async fn prepare(which: &[String], quick: bool) -> Self {
        let wanted = |name: &&str| which.is_empty() || which.iter().any(|which| which == name);
        let unknown = which.iter().filter(|which| !NAMES.contains(&which.as_str()));
        let mut not_run: Vec<NotRun> = unknown.map(|which| unknown_peer(which)).collect();
        let mut programs = Vec::new();
        for prepared in prepare::all(NAMES.into_iter().filter(wanted)).await {
            match prepared {
                Ok(program) => programs.push(program),
                Err(peer) => not_run.push(peer),
            }
        }
        let limit = Duration::from_secs(if quick { 60 } else { 300 });
        Self { programs, not_run, limit, quick }
    }

    /// Measures how long each peer takes to empty a backlog of this size with an empty handler, all
    /// jobs settled. Peers that take jobs one by one get a smaller backlog; the figure contains its
    /// size.
    pub(crate) async fn drain(&self, database: &str, events: usize) -> Vec<Outcome> {
        self.measure(database, |program| {
            let events = events.min(program.most_events(self.quick));
            vec!["drain".into(), "--events".into(), events.to_string()]
        })
        .await
    }

    /// Measures the time from commit to handler, at this many jobs per second.
    pub(crate) async fn latency(&self, database: &str, rate: u32, seconds: u32) -> Vec<Outcome> {
        self.measure(database, |_| {
            let (rate, seconds) = (rate.to_string(), seconds.to_string());
            vec!["latency".into(), "--rate".into(), rate, "--seconds".into(), seconds]
        })
        .await
    }

    /// Measures this many business transactions that each add a job, without a worker.
    pub(crate) async fn write(&self, database: &str, writers: usize, transactions: usize) -> Vec<Outcome> {
        self.measure(database, |_| {
            let (writers, transactions) = (writers.to_string(), transactions.to_string());
            vec!["write".into(), "--writers".into(), writers, "--transactions".into(), transactions]
        })
        .await
    }

    async fn measure(&self, database: &str, figure: impl Fn(&Program) -> Vec<String>) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(self.programs.len() + self.not_run.len());
        for program in &self.programs {
            let arguments = figure(program);
            eprintln!("peers: {} {}", program.peer, arguments.join(" "));
            let outcome = match measure_one(program, database, &arguments, self.limit).await {
                Ok(measured) => Outcome::Measured(measured),
                Err(reason) => Outcome::NotRun(NotRun { peer: program.peer.to_owned(), reason }),
            };
            outcomes.push(outcome);
        }
        outcomes.extend(self.not_run.iter().cloned().map(Outcome::NotRun));
        outcomes
    }
}

/// Runs one peer in its own database, which is dropped afterwards.
async fn measure_one(
    program: &Program,
    database: &str,
    arguments: &[String],
    limit: Duration,
) -> Result<Measured, String> {
    let scratch = Scratch::create(database).await.map_err(|error| format!("no database for it: {error}"))?;
    let mut command = program.command();
    command.args(arguments).args(["--database", scratch.url()]);
    let output = process::run(command, limit).await;
    let dropped = scratch.drop().await.map_err(|error| format!("its database remains: {error}"));
    let measured = line::parse(&output?);
    dropped.and(measured)
}

fn unknown_peer(which: &str) -> NotRun {
    let reason = format!("no such peer; there are {}", NAMES.join(", "));
    NotRun { peer: which.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_peer_is_named_and_does_not_end_the_run() {
        let peers = Peers::prepare(&["sidekiq".to_owned()], true).await;
        let outcomes = peers.drain("postgres://127.0.0.1:1/none", 10).await;
        assert_eq!(outcomes, [Outcome::NotRun(unknown_peer("sidekiq"))]);
    }

    #[tokio::test]
    async fn a_peer_without_a_server_is_not_run_and_says_why() {
        let program = Program::for_test("awa", "true");
        let peers =
            Peers { programs: vec![program], not_run: vec![], limit: Duration::from_secs(5), quick: true };
        let outcomes = peers.drain("postgres://postgres@127.0.0.1:1/none", 10).await;
        let [Outcome::NotRun(NotRun { peer, reason })] = outcomes.as_slice() else {
            panic!("{outcomes:?}");
        };
        assert_eq!(peer, "awa");
        assert!(reason.starts_with("no database for it: "), "{reason}");
    }

    /// Takes minutes the first time, so only with `OUTBOX_BENCH_PEERS=1` and a server in
    /// `OUTBOX_TEST_POSTGRES`.
    #[tokio::test]
    async fn every_peer_gives_every_figure() {
        if std::env::var_os("OUTBOX_BENCH_PEERS").is_none() {
            return;
        }
        let database = std::env::var("OUTBOX_TEST_POSTGRES").expect("OUTBOX_TEST_POSTGRES names a server");
        let peers = Peers::prepare(&[], true).await;
        let mut outcomes = peers.drain(&database, 500).await;
        outcomes.extend(peers.latency(&database, 50, 1).await);
        outcomes.extend(peers.write(&database, 4, 100).await);
        assert_eq!(outcomes.len(), 3 * NAMES.len());
        for outcome in outcomes {
            assert!(matches!(outcome, Outcome::Measured(_)), "{outcome:?}");
        }
    }
}
