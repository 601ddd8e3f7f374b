//! The life of a relay: start, serve, reload, stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox_transports::Text;

use super::health::{Health, SharedHealth};
use super::http::{Serve, Server};
use super::lines::Gone;
use super::outlets::{Asked, Outlets};
use super::reload::Changeable;
use super::signals::{Signals, Told};
use super::source::Serving;
use super::table::{Switch, Table};
use crate::Usage;
use crate::config::{Config, Source};

/// What to run.
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// Where the settings were read from, to be read again.
    pub(crate) file: Option<PathBuf>,
    /// The database if the file names none.
    pub(crate) otherwise: Option<String>,
    /// What the setting of the database is called, for hints.
    pub(crate) setting: &'static str,
    pub(crate) listen: Option<SocketAddr>,
    /// Where probes and metrics are as well.
    pub(crate) probes_listen: Option<SocketAddr>,
    /// Whether people read what is said, rather than machines.
    pub(crate) to_people: bool,
    /// How long to try to reach the database at first.
    pub(crate) wait: Duration,
}

/// How often to look whether this relay has taken over, or lost, an outbox.
const LOOK: Duration = Duration::from_millis(250);

/// How long to wait between two attempts to reach the database at first.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) async fn run(plan: Plan) -> Result<ExitCode> {
    // From the first moment on: what is told to stop while it starts stops as well.
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
    let Plan { listen, probes_listen, to_people, .. } = plan;
    let settings = Serve { listen, probes_listen, http: &plan.config.http, database, to_people };
    let _server = Server::start(&settings, health.clone()).await?;
    let gone = Arc::new(Gone::default());
    let outlets = Outlets::new(&plan.config, &Outlets::default(), &gone)?;
    health.set_outlets(&outlets);
    let switch = Switch::new(Table::new(&plan.config, &outlets));
    let serving = tokio::select! {
        serving = start(&plan, &outlets, &switch) => serving?,
        () = signals.stop() => return Ok(ExitCode::SUCCESS),
    };
    health.serves(&serving);
    tokio::spawn(name_the_absent(outlets.clone()));
    let Plan { config, file, otherwise, .. } = plan;
    let mut changeable =
        Changeable { file, otherwise, config, outlets, switch, gone: gone.clone(), health: health.clone() };
    let end = serve(&serving, &health, &mut signals, &gone, || changeable.reload()).await;
    finish(serving, end, &health, &mut signals).await
}

/// Serves until there is a reason to stop.
async fn serve(
    serving: &Serving,
    health: &Health,
    signals: &mut Signals,
    gone: &Gone,
    mut reload: impl FnMut(),
) -> End {
    let mut watch = Watch::default();
    loop {
        watch.look(serving, health).await;
        tokio::select! {
            told = signals.next() => match told {
                Told::Stop => return End::Told,
                Told::Reload => {
                    reload();
                    // What waited for a destination may have another one now.
                    serving.wake();
                }
            },
            () = gone.told() => return End::Gone,
            ended = serving.stopped() => return End::Failed(ended),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Why a relay stops.
enum End {
    /// It was told to.
    Told,
    /// Standard output is closed.
    Gone,
    /// It has ended by itself.
    Failed(outbox::Result<()>),
}

/// Stops the relay. An error, and so a non-zero exit code, unless it was told to stop and could.
async fn finish(serving: Serving, end: End, health: &Health, signals: &mut Signals) -> Result<ExitCode> {
    if let End::Failed(failed) = &end {
        health.ends(&failed.as_ref().map_or_else(ToString::to_string, |()| "the relay has ended".to_owned()));
    } else {
        health.stops();
    }
    let stopped = tokio::select! {
        stopped = serving.stop() => stopped,
        // Whoever says it twice does not want to wait.
        () = signals.stop() => std::process::exit(130),
    };
    health.log_counts();
    match end {
        End::Told => stopped.context("could not give back what was in hand: others wait for its lease")?,
        End::Gone => {
            bail!("cannot write to standard output any more; what was not written stays in the database")
        }
        End::Failed(failed) => {
            failed?;
            bail!("the relay has ended by itself");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the relay, again and again until the time is over.
async fn start(plan: &Plan, outlets: &Outlets, switch: &Switch) -> Result<Serving> {
    let until = Instant::now() + plan.wait;
    let mut said = false;
    loop {
        match Serving::start(&plan.config, plan.setting, outlets, switch).await {
            Err(error) if !error.is::<Usage>() && Instant::now() + AGAIN < until => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!("{error:#}\ntrying again for {:?}", plan.wait);
                }
            }
            started => return started,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Says which publishers are not there. The relay waits for them.
async fn name_the_absent(outlets: Outlets) {
    for Asked { name, kind, health } in outlets.ask().await {
        if let Err(reason) = health {
            tracing::warn!("the publisher `{name}` ({kind}) is not available yet, its events wait: {reason}");
        }
    }
}

/// Says when this relay stands by, for whom, and when it does not any more.
#[derive(Default)]
struct Watch {
    standing_by: bool,
}

impl Watch {
    async fn look(&mut self, serving: &Serving, health: &Health) {
        let active = serving.is_active();
        health.look(serving);
        if !active && !self.standing_by {
            let holder =
                serving.holder().await.map_or_else(|| "another relay".to_owned(), |node| node.to_string());
            tracing::warn!(
                "standing by: `mode = \"single-node\"` lets one relay deliver, and {holder} does; this one takes over \
                 when that one ends"
            );
        }
        if active && self.standing_by {
            tracing::info!("took over: this relay delivers now");
        }
        self.standing_by = !active;
    }
}

#[cfg(test)]
#[path = "../../../outbox/tests/common/failing_store.rs"]
mod failing;

#[cfg(test)]
mod tests {
    use outbox::settings::Mode;
    use outbox::{Event, Outbox, RelayBuilder};

    use super::failing::Failing;
    use super::*;

    /// The process ends with 1 and the cause on standard error, which is how `main` tells errors.
    #[tokio::test]
    async fn a_relay_that_ends_by_itself_ends_the_process_with_an_error() {
        let outbox = Outbox::sqlite(":memory:").await.unwrap();
        outbox.migrate().await.unwrap();
        outbox.send(Event::new("e").json(&1)).await.unwrap();
        let store = Failing::take(outbox.store(), usize::MAX, || panic!("out of order"));
        let relay = RelayBuilder::multi_node(store.clone()).start().await.unwrap();
        let serving = Serving::One { relay, store, mode: Mode::MultiNode };
        let (health, gone) = (Health::default(), Gone::default());
        health.serves(&serving);
        assert_eq!(health.ended(), None);
        let mut signals = Signals::new(false).unwrap();
        let served = serve(&serving, &health, &mut signals, &gone, || {});
        let end = tokio::time::timeout(Duration::from_secs(60), served).await.expect("it ends");
        let ended = finish(serving, end, &health, &mut signals).await;
        let told = format!("{:#}", ended.as_ref().expect_err("it failed"));
        assert!(told.starts_with("the relay has ended: its task `take` failed: 5 panics"), "{told}");
        assert!(told.contains("out of order"), "{told}");
        assert_eq!(health.ended(), Some(told), "/healthz fails");
        let ready = health.readiness().await;
        assert!(!ready.ready);
        assert_eq!(format!("{:?}", crate::conclude("relay", ended)), format!("{:?}", ExitCode::FAILURE));
    }
}
