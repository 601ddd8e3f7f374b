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
use super::outlets::Outlets;
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
    /// Whether other machines may ask for probes and metrics.
    pub(crate) allow_remote: bool,
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
    let _server = match plan.listen {
        Some(listen) => {
            let database = match &plan.config.source {
                Source::One(database) => database.name.as_ref().map(Text::as_str),
                _ => None,
            };
            let http = &plan.config.http;
            let Plan { allow_remote, to_people, .. } = plan;
            let serve = Serve { listen, http, allow_remote, database, to_people };
            Some(Server::start(&serve, health.clone()).await?)
        }
        None => None,
    };
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
    let mut watch = Watch::default();
    let is_gone = loop {
        watch.look(&serving, &health).await;
        tokio::select! {
            told = signals.next() => match told {
                Told::Stop => break false,
                Told::Reload => {
                    changeable.reload();
                    // What waited for a destination may have another one now.
                    serving.wake();
                }
            },
            () = gone.told() => break true,
            () = tokio::time::sleep(LOOK) => {}
        }
    };
    health.stops();
    let stopped = tokio::select! {
        stopped = serving.stop() => stopped,
        // Whoever says it twice does not want to wait.
        () = signals.stop() => std::process::exit(130),
    };
    if is_gone {
        bail!("cannot write to standard output any more; what was not written stays in the database");
    }
    stopped.context("could not give back what was in hand: others wait for its lease")?;
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
    for (name, kind, healthy) in outlets.ask().await {
        if !healthy {
            tracing::warn!("the publisher `{name}` ({kind}) cannot be reached yet: its events wait");
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
        health.set_active(active);
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
