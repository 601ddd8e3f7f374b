//! Opens the databases of the settings, and starts a relay on them.

use anyhow::Result;
use outbox::fleet::{DrainFirst, FleetBuilder, FleetDatabase, FleetRelay};
use outbox::settings::Mode;
use outbox::store::{EXCLUSIVE, RelayHealth, SharedStore};
use outbox::{Error, Fleet, NodeId, Relay, RelayBuilder, RelaySource, open_store};

use super::discovery::{Allowed, DiscoveryQuery};
use super::publishers::Publishers;
use super::routing_table::SharedRoutingTable;
use crate::Usage;
use crate::config::{Config, Count, DatabaseGroup, FleetSelection, NamedDatabase, Source};
use crate::database::{DatabaseUrl, Tables};

/// Default number of connections of a relay with one database.
const DEFAULT_CONNECTIONS: u32 = 4;

/// A running relay, on one database or a fleet.
pub(crate) enum RunningRelay {
    One { relay: Relay, store: SharedStore, mode: Mode },
    Fleet { relay: FleetRelay, fleet: Fleet },
}

impl RunningRelay {
    /// Opens the source and starts. An error other than [`Usage`] may be transient, so that the
    /// caller may retry.
    pub(crate) async fn start(
        config: &Config,
        setting: &'static str,
        publishers: &Publishers,
        routing_table: &SharedRoutingTable,
    ) -> Result<Self> {
        match &config.source {
            Source::One(database) => start_one(config, database, setting, publishers, routing_table).await,
            Source::Several(databases) => {
                let databases = databases.iter().map(NamedDatabase::database);
                start_fleet(config, Fleet::builder().databases(databases), publishers, routing_table).await
            }
            Source::Discovered(discovery) => {
                let url = DatabaseUrl::parse(discovery.url.get_ref().expose())?
                    .with_setting("`url` of `[discovery]`");
                let mut fleet = Fleet::builder();
                if let Some(interval) = discovery.interval {
                    fleet = fleet.refresh(interval.0);
                }
                if let Some(absences) = discovery.absences {
                    fleet = fleet.absences(absences.get_u32());
                }
                let allowed = Allowed::new(&discovery.allow, discovery.hosts.as_deref());
                let query = DiscoveryQuery::new(url, discovery.query.as_str(), allowed);
                start_fleet(config, fleet.discovery(query), publishers, routing_table).await
            }
        }
    }

    /// Whether this relay delivers: false in mode single-node while another relay does.
    pub(crate) fn is_active(&self) -> bool {
        match self {
            RunningRelay::One { relay, mode, .. } => *mode != Mode::SingleNode || relay.is_active(),
            RunningRelay::Fleet { .. } => true,
        }
    }

    /// Relay that delivers instead of this one.
    pub(crate) async fn leader(&self) -> Option<NodeId> {
        match self {
            RunningRelay::One { store, .. } => store.leader(EXCLUSIVE).await.ok().flatten(),
            RunningRelay::Fleet { .. } => None,
        }
    }

    /// Health of the relay of one database; in a fleet each database has its own.
    pub(crate) fn health(&self) -> Option<RelayHealth> {
        match self {
            RunningRelay::One { relay, .. } => Some(relay.health()),
            RunningRelay::Fleet { .. } => None,
        }
    }

    /// Waits until the relay has ended by itself, and returns the reason.
    pub(crate) async fn stopped(&self) -> outbox::Result<()> {
        match self {
            RunningRelay::One { relay, .. } => relay.stopped().await,
            RunningRelay::Fleet { relay, .. } => relay.stopped().await,
        }
    }

    /// Polls for due events now.
    pub(crate) fn wake(&self) {
        match self {
            RunningRelay::One { relay, .. } => relay.wake(),
            RunningRelay::Fleet { relay, .. } => relay.wake(),
        }
    }

    pub(crate) async fn stop(self) -> outbox::Result<()> {
        match self {
            RunningRelay::One { relay, .. } => relay.stop().await,
            RunningRelay::Fleet { relay, fleet } => {
                let stopped = relay.stop().await;
                fleet.close().await;
                stopped
            }
        }
    }
}

async fn start_one(
    config: &Config,
    database: &DatabaseGroup,
    setting: &'static str,
    publishers: &Publishers,
    routing_table: &SharedRoutingTable,
) -> Result<RunningRelay> {
    let url = database.url().unwrap_or_default();
    let (table, schema) = (database.table(), database.schema());
    let connections = database.connections.map_or(DEFAULT_CONNECTIONS, Count::get_u32);
    let (_, options) = Tables::new(url, table, schema).options(connections)?;
    let mut options = database.options(options);
    if let Some(limit) = config.groups.dispatcher.max_payload {
        options = options.max_payload(limit.get());
    }
    let url = DatabaseUrl::parse(url)?.with_setting(setting);
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
    let started = configure(config, builder, publishers, routing_table).start().await;
    let relay = started.map_err(|error| setting_error(error, explain))?;
    Ok(RunningRelay::One { relay, store, mode })
}

async fn start_fleet(
    config: &Config,
    mut fleet: FleetBuilder,
    publishers: &Publishers,
    routing_table: &SharedRoutingTable,
) -> Result<RunningRelay> {
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
    let fleet = opened.map_err(|error| setting_error(error, anyhow::Error::from))?;
    let mut builder = match config.groups.mode() {
        Mode::SingleNode => fleet.single_node(),
        Mode::Ordered => fleet.ordered(),
        // The other modes need one database, which the check of the settings ensures.
        _ => fleet.multi_node(),
    };
    if let Some(workers) = config.groups.dispatcher.workers_per_database {
        builder = builder.workers_per_database(workers.get());
    }
    builder = match config.fleet.selection {
        None | Some(FleetSelection::RoundRobin) => builder,
        Some(FleetSelection::DrainFirst) => builder.selection(DrainFirst),
    };
    let started = configure(config, builder, publishers, routing_table).start().await;
    let relay = started.map_err(|error| setting_error(error, anyhow::Error::from))?;
    Ok(RunningRelay::Fleet { relay, fleet })
}

/// Turns an error about a setting into wrong usage.
fn setting_error(error: Error, explain: impl FnOnce(Error) -> anyhow::Error) -> anyhow::Error {
    match error {
        Error::Setting { reason, .. } => Usage(reason).into(),
        other => explain(other),
    }
}

/// Applies all settings, topics and routes to a relay.
fn configure<D: RelaySource>(
    config: &Config,
    builder: RelayBuilder<D>,
    publishers: &Publishers,
    routing_table: &SharedRoutingTable,
) -> RelayBuilder<D> {
    let mut builder = config.groups.apply(builder);
    for topic in &config.topics {
        let selection = topic.selection();
        for publisher in topic.to.iter().filter_map(|to| publishers.publisher(to.get_ref())) {
            let name = publisher.name().to_owned();
            builder = builder.publish(topic.pace(selection.to_shared(publisher), &name));
        }
    }
    let delivers = !matches!(config.groups.mode(), Mode::LogOnly | Mode::WriterOnly);
    if delivers { builder.forward_by(routing_table.clone()) } else { builder }
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
