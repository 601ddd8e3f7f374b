//! Opens what the settings name as the source of events, and starts a relay on it.

use anyhow::Result;
use outbox::fleet::{DrainFirst, FleetBuilder, FleetDatabase, FleetRelay};
use outbox::settings::Mode;
use outbox::store::{EXCLUSIVE, RelayHealth, SharedStore};
use outbox::{Error, Fleet, NodeId, Relay, RelayBuilder, open_store};

use super::discovery::{Allowed, Query};
use super::outlets::Outlets;
use super::table::Switch;
use crate::Usage;
use crate::config::{Config, Count, Database, FleetSelection, NamedDatabase, Source};
use crate::database::{DatabaseUrl, Tables};

/// How many connections a relay of one database has, if nobody says otherwise.
const CONNECTIONS: u32 = 4;

/// A relay that runs.
pub(crate) enum Serving {
    One { relay: Relay, store: SharedStore, mode: Mode },
    Fleet { relay: FleetRelay, fleet: Fleet },
}

impl Serving {
    /// Opens the source and starts. An error may pass: another attempt makes sense, unless it is [`Usage`].
    pub(crate) async fn start(
        config: &Config,
        setting: &'static str,
        outlets: &Outlets,
        switch: &Switch,
    ) -> Result<Self> {
        match &config.source {
            Source::One(database) => one(config, database, setting, outlets, switch).await,
            Source::Several(databases) => {
                let databases = databases.iter().map(NamedDatabase::database);
                several(config, Fleet::builder().databases(databases), outlets, switch).await
            }
            Source::Discovered(discovery) => {
                let url =
                    DatabaseUrl::parse(discovery.url.get_ref().expose())?.called("`url` of `[discovery]`");
                let mut fleet = Fleet::builder();
                if let Some(interval) = discovery.interval {
                    fleet = fleet.refresh(interval.0);
                }
                if let Some(absences) = discovery.absences {
                    fleet = fleet.absences(absences.get_u32());
                }
                let allowed = Allowed::new(&discovery.allow, discovery.hosts.as_deref());
                let query = Query::new(url, discovery.query.as_str(), allowed);
                several(config, fleet.discovery(query), outlets, switch).await
            }
        }
    }

    /// Whether it delivers: false while another one does, in mode single-node.
    pub(crate) fn is_active(&self) -> bool {
        match self {
            Serving::One { relay, mode, .. } => *mode != Mode::SingleNode || relay.is_active(),
            Serving::Fleet { .. } => true,
        }
    }

    /// Who delivers instead.
    pub(crate) async fn holder(&self) -> Option<NodeId> {
        match self {
            Serving::One { store, .. } => store.leader(EXCLUSIVE).await.ok().flatten(),
            Serving::Fleet { .. } => None,
        }
    }

    /// Health of the relay of one database; those of a fleet are with their databases.
    pub(crate) fn health(&self) -> Option<RelayHealth> {
        match self {
            Serving::One { relay, .. } => Some(relay.health()),
            Serving::Fleet { .. } => None,
        }
    }

    /// Waits until it has ended by itself, and says why.
    pub(crate) async fn stopped(&self) -> outbox::Result<()> {
        match self {
            Serving::One { relay, .. } => relay.stopped().await,
            Serving::Fleet { relay, .. } => relay.stopped().await,
        }
    }

    /// Looks for due events now.
    pub(crate) fn wake(&self) {
        match self {
            Serving::One { relay, .. } => relay.wake(),
            Serving::Fleet { relay, .. } => relay.wake(),
        }
    }

    pub(crate) async fn stop(self) -> outbox::Result<()> {
        match self {
            Serving::One { relay, .. } => relay.stop().await,
            Serving::Fleet { relay, fleet } => {
                let stopped = relay.stop().await;
                fleet.close().await;
                stopped
            }
        }
    }
}

async fn one(
    config: &Config,
    database: &Database,
    setting: &'static str,
    outlets: &Outlets,
    switch: &Switch,
) -> Result<Serving> {
    let url = database.url().unwrap_or_default();
    let (table, schema) = (database.table(), database.schema());
    let connections = database.connections.map_or(CONNECTIONS, Count::get_u32);
    let (_, options) = Tables::new(url, table, schema).options(connections)?;
    let mut options = database.options(options);
    if let Some(limit) = config.groups.dispatcher.max_payload {
        options = options.max_payload(limit.get());
    }
    let url = DatabaseUrl::parse(url)?.called(setting);
    let explain = |error| url.explain_outbox(error);
    url.probe().await?;
    let store = open_store(url.secret(), &options).await.map_err(explain)?;
    if config.groups.general.migrate == Some(true) {
        store.migrate().await.map_err(explain)?;
    }
    let mode = config.groups.mode();
    let builder = match mode {
        Mode::SingleNode => RelayBuilder::single_node(store.clone()),
        Mode::MultiNode => RelayBuilder::multi_node(store.clone()),
        Mode::Ordered => RelayBuilder::ordered(store.clone()),
        Mode::WriterOnly => RelayBuilder::writer_only(store.clone()),
        _ => RelayBuilder::log_only(store.clone()),
    };
    let started = tell(config, builder, outlets, switch).start().await;
    let relay = started.map_err(|error| told(error, explain))?;
    Ok(Serving::One { relay, store, mode })
}

async fn several(
    config: &Config,
    mut fleet: FleetBuilder,
    outlets: &Outlets,
    switch: &Switch,
) -> Result<Serving> {
    if let Some(limit) = config.groups.dispatcher.max_payload {
        fleet = fleet.max_payload(limit.get());
    }
    if let Some(connections) = config.fleet.max_connections {
        fleet = fleet.max_connections(connections.get());
    }
    if let Some(patience) = config.fleet.patience {
        fleet = fleet.patience(patience.0);
    }
    if let Some(prefix) = &config.groups.metrics.prefix {
        fleet = fleet.metrics_prefix(&prefix.0);
    }
    let migrate = config.groups.general.migrate == Some(true);
    let opened = fleet.migrate(migrate).open().await;
    let fleet = opened.map_err(|error| told(error, anyhow::Error::from))?;
    let mut builder = match config.groups.mode() {
        Mode::SingleNode => fleet.single_node(),
        Mode::Ordered => fleet.ordered(),
        // The others are for one database, which the check insists on.
        _ => fleet.multi_node(),
    };
    if let Some(workers) = config.groups.dispatcher.workers_per_database {
        builder = builder.workers_per_database(workers.get());
    }
    builder = match config.fleet.selection {
        None | Some(FleetSelection::RoundRobin) => builder,
        Some(FleetSelection::DrainFirst) => builder.selection(DrainFirst),
    };
    let started = tell(config, builder, outlets, switch).start().await;
    let relay = started.map_err(|error| told(error, anyhow::Error::from))?;
    Ok(Serving::Fleet { relay, fleet })
}

/// A setting that cannot be is wrong usage.
fn told(error: Error, explain: impl FnOnce(Error) -> anyhow::Error) -> anyhow::Error {
    match error {
        Error::Setting(what) => Usage(what).into(),
        other => explain(other),
    }
}

/// Tells a relay all settings, its topics and its routes.
fn tell<S>(config: &Config, builder: RelayBuilder<S>, outlets: &Outlets, switch: &Switch) -> RelayBuilder<S> {
    let mut builder = config.groups.apply(builder);
    for topic in &config.topics {
        let selection = topic.selection();
        for publisher in topic.to.iter().filter_map(|to| outlets.publisher(to.get_ref())) {
            let name = publisher.name().to_owned();
            builder = builder.publish(topic.pace(selection.to_shared(publisher), &name));
        }
    }
    let delivers = !matches!(config.groups.mode(), Mode::LogOnly | Mode::WriterOnly);
    if delivers { builder.forward_by(switch.clone()) } else { builder }
}

impl NamedDatabase {
    fn database(&self) -> FleetDatabase {
        let mut database = FleetDatabase::new(self.name.get_ref().as_str(), self.url.get_ref().expose());
        if let Some(table) = &self.table {
            database = database.table(table.as_str());
        }
        if let Some(schema) = &self.schema {
            database = database.schema(schema.as_str());
        }
        database
    }
}
