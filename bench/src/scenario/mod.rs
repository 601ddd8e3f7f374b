//! The scenarios, one per file. A scenario measures and fills a [`Sheet`]; it does not render it.

mod cold;
mod growth;
mod hot;
mod insert_to_line;
mod latency;
mod log;
mod nodes;
mod order;
mod peer_figures;
mod relay;
mod transports;
mod write;

use async_trait::async_trait;

use crate::environment::Environment;
use crate::figures::Sheet;

/// A benchmark.
#[async_trait]
pub(crate) trait Scenario: Sync {
    /// Name for `--only`.
    fn name(&self) -> &'static str;

    /// Heading of the results.
    fn title(&self) -> &'static str;

    /// Description of the measurement and of the comparison.
    fn about(&self, env: &Environment) -> String;

    /// Whether it also runs on other databases than PostgreSQL. Such a scenario runs only if it is
    /// named.
    fn any_database(&self) -> bool {
        false
    }

    /// Whether other tools are measured too.
    fn has_peers(&self) -> bool {
        false
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()>;
}

/// All scenarios, in the order of the report.
pub(crate) const ALL: [&dyn Scenario; 11] = [
    &cold::Cold,
    &nodes::Nodes,
    &order::Order,
    &write::Write,
    &hot::Hot,
    &latency::Latency,
    &growth::Growth,
    &log::Log,
    &transports::Transports,
    &relay::Relay,
    &insert_to_line::InsertToLine,
];

/// The scenarios of these names, or those of a default run.
pub(crate) fn named(names: &[String]) -> anyhow::Result<Vec<&'static dyn Scenario>> {
    if names.is_empty() {
        return Ok(ALL.into_iter().filter(|scenario| !scenario.any_database()).collect());
    }
    let known = || ALL.map(Scenario::name).join(", ");
    let find = |name: &String| {
        let found = ALL.into_iter().find(|scenario| scenario.name() == name);
        found.ok_or_else(|| anyhow::anyhow!("unknown scenario `{name}`; known: {}", known()))
    };
    names.iter().map(find).collect()
}

/// Runs a scenario. A failure is noted on its sheet, so that the results of the others are kept.
pub(crate) async fn run(scenario: &dyn Scenario, env: &Environment) -> Sheet {
    let mut sheet = Sheet {
        name: scenario.name(),
        title: scenario.title(),
        about: scenario.about(env),
        ..Sheet::default()
    };
    if let Err(error) = scenario.run(env, &mut sheet).await {
        sheet.failed = true;
        sheet.notes.push(format!("The scenario failed: {error:#}."));
    }
    sheet
}
