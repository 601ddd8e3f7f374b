//! Lifecycle of a relay process: start, serve, reload, stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox_transports::Text;

use super::health::{Health, SharedHealth};
use super::http::{Server, ServerSettings};
use super::json_lines::BrokenPipe;
use super::publishers::{PublisherHealth, Publishers};
use super::reload::Reloadable;
use super::routing_table::{RoutingTable, SharedRoutingTable};
use super::signals::{SignalAction, Signals};
use super::source::RunningRelay;
use crate::Usage;
use crate::config::{Config, Source};

/// Settings of a relay process.
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// The settings file, for reloads.
    pub(crate) file: Option<PathBuf>,
    /// Database URL if the file names none.
    pub(crate) fallback_url: Option<String>,
    /// Name of the database setting, for hints.
    pub(crate) setting: &'static str,
    pub(crate) listen: Option<SocketAddr>,
    /// Second address for probes and metrics.
    pub(crate) probes_listen: Option<SocketAddr>,
    /// Whether standard error is a terminal with text output, where a secret may be printed.
    pub(crate) interactive: bool,
    /// How long to retry if the database cannot be reached at start.
    pub(crate) wait: Duration,
}

/// Interval for checking whether this relay has become active or inactive.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Delay between two attempts to reach the database at start.
const START_RETRY_DELAY: Duration = Duration::from_secs(1);

pub(crate) async fn run(plan: Plan) -> Result<ExitCode> {
    // Installed first, so that a signal during the start stops the process, too.
    let mut signals = Signals::new(plan.file.is_some())?;
    if let Some(file) = &plan.file {
        for warning in &plan.config.warnings {
            tracing::warn!("{}", warning.in_file(&file.display().to_string()));
        }
    }
    let health: SharedHealth = Arc::new(Health::default());
    let database = match &plan.config.source {
        Source::One(database) => database.name.as_ref().map(Text::as_str),
        _ => None,
    };
    let Plan { listen, probes_listen, interactive, .. } = plan;
    let settings = ServerSettings { listen, probes_listen, http: &plan.config.http, database, interactive };
    let _server = Server::start(&settings, health.clone()).await?;
    let broken_pipe = Arc::new(BrokenPipe::default());
    let publishers = Publishers::new(&plan.config, &Publishers::default(), &broken_pipe)?;
    health.set_publishers(&publishers);
    let routing_table = SharedRoutingTable::new(RoutingTable::new(&plan.config, &publishers));
    let running = tokio::select! {
        running = start(&plan, &publishers, &routing_table) => running?,
        () = signals.stop() => return Ok(ExitCode::SUCCESS),
    };
    health.set_running(&running);
    tokio::spawn(warn_unavailable_publishers(publishers.clone()));
    let Plan { config, file, fallback_url, .. } = plan;
    let mut reloadable = Reloadable {
        file,
        fallback_url,
        config,
        publishers,
        routing_table,
        broken_pipe: broken_pipe.clone(),
        health: health.clone(),
    };
    let end = serve(&running, &health, &mut signals, &broken_pipe, || reloadable.reload()).await;
    finish(running, end, &health, &mut signals).await
}

/// Runs the relay until there is a reason to stop.
async fn serve(
    running: &RunningRelay,
    health: &Health,
    signals: &mut Signals,
    broken_pipe: &BrokenPipe,
    mut reload: impl FnMut(),
) -> StopReason {
    let mut standby = StandbyReporter::default();
    loop {
        standby.update(running, health).await;
        tokio::select! {
            action = signals.next() => match action {
                SignalAction::Stop => return StopReason::Signal,
                SignalAction::Reload => {
                    reload();
                    // Events that waited for a destination may have another route now.
                    running.wake();
                }
            },
            () = broken_pipe.wait_until_broken() => return StopReason::BrokenPipe,
            ended = running.stopped() => return StopReason::Ended(ended),
            () = tokio::time::sleep(STATE_POLL_INTERVAL) => {}
        }
    }
}

/// Reason for stopping.
enum StopReason {
    /// SIGTERM or Ctrl-C.
    Signal,
    /// Standard output is closed.
    BrokenPipe,
    /// The relay ended by itself.
    Ended(outbox::Result<()>),
}

/// Stops the relay. Returns an error, and so a non-zero exit code, unless a signal was the reason
/// and the relay stopped cleanly.
async fn finish(
    running: RunningRelay,
    end: StopReason,
    health: &Health,
    signals: &mut Signals,
) -> Result<ExitCode> {
    if let StopReason::Ended(failed) = &end {
        health.set_ended(
            &failed.as_ref().map_or_else(ToString::to_string, |()| "the relay has ended".to_owned()),
        );
    } else {
        health.set_stopping();
    }
    let stopped = tokio::select! {
        stopped = running.stop() => stopped,
        // A second signal exits at once.
        () = signals.stop() => std::process::exit(130),
    };
    health.log_counts();
    match end {
        StopReason::Signal => stopped.context(
            "cannot release the events in flight: other relays take them over when their leases expire",
        )?,
        StopReason::BrokenPipe => {
            bail!("standard output is closed; events that were not written stay in the database")
        }
        StopReason::Ended(failed) => {
            failed?;
            bail!("the relay ended unexpectedly");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the relay. Retries errors other than wrong usage until `plan.wait` is over.
async fn start(
    plan: &Plan,
    publishers: &Publishers,
    routing_table: &SharedRoutingTable,
) -> Result<RunningRelay> {
    let until = Instant::now() + plan.wait;
    let mut warned = false;
    loop {
        match RunningRelay::start(&plan.config, plan.setting, publishers, routing_table).await {
            Err(error) if !error.is::<Usage>() && Instant::now() + START_RETRY_DELAY < until => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!("{error:#}\nretrying for up to {:?}", plan.wait);
                }
            }
            started => return started,
        }
        tokio::time::sleep(START_RETRY_DELAY).await;
    }
}

/// Logs which publishers are unavailable. The relay waits for them.
async fn warn_unavailable_publishers(publishers: Publishers) {
    for PublisherHealth { name, kind, health } in publishers.check_health().await {
        if let Err(reason) = health {
            tracing::warn!("publisher `{name}` ({kind}) is unavailable, its events wait: {reason}");
        }
    }
}

/// Logs when this relay starts to stand by, with the active relay's name, and when it becomes
/// active.
#[derive(Default)]
struct StandbyReporter {
    standing_by: bool,
}

impl StandbyReporter {
    async fn update(&mut self, running: &RunningRelay, health: &Health) {
        let active = running.is_active();
        health.update(running);
        if !active && !self.standing_by {
            let leader =
                running.leader().await.map_or_else(|| "another relay".to_owned(), |node| node.to_string());
            tracing::warn!(
                "standing by: `mode = \"single-node\"` allows one active relay, which is {leader}; this relay takes over \
                 when it stops"
            );
        }
        if active && self.standing_by {
            tracing::info!("took over: this relay is active now");
        }
        self.standing_by = !active;
    }
}

#[cfg(test)]
#[path = "../../../outbox/tests/common/failing_store.rs"]
mod failing_store;

#[cfg(test)]
mod tests {
    use outbox::settings::Mode;
    use outbox::{Event, Outbox, RelayBuilder};

    use super::failing_store::FailingStore;
    use super::*;

    /// The exit code is 1, and `main` prints the cause to standard error.
    #[tokio::test]
    async fn a_relay_that_ends_by_itself_ends_the_process_with_an_error() {
        let outbox = Outbox::sqlite(":memory:").await.unwrap();
        outbox.migrate().await.unwrap();
        outbox.send(Event::new("e").json(&1)).await.unwrap();
        let store = FailingStore::take(outbox.store(), usize::MAX, || panic!("out of order"));
        let relay = RelayBuilder::multi_node(store.clone()).start().await.unwrap();
        let running = RunningRelay::One { relay, store, mode: Mode::MultiNode };
        let (health, broken_pipe) = (Health::default(), BrokenPipe::default());
        health.set_running(&running);
        assert_eq!(health.ended(), None);
        let mut signals = Signals::new(false).unwrap();
        let served = serve(&running, &health, &mut signals, &broken_pipe, || {});
        let end = tokio::time::timeout(Duration::from_secs(60), served).await.expect("the relay ends");
        let ended = finish(running, end, &health, &mut signals).await;
        let message = format!("{:#}", ended.as_ref().expect_err("the relay failed"));
        assert!(message.starts_with("the relay has ended: its task `take` failed: 5 panics"), "{message}");
        assert!(message.contains("out of order"), "{message}");
        assert_eq!(health.ended(), Some(message), "/healthz fails");
        let ready = health.readiness().await;
        assert!(!ready.ready);
        assert_eq!(format!("{:?}", crate::exit_code("relay", ended)), format!("{:?}", ExitCode::FAILURE));
    }
}
