//! The scenarios, a file each. One says what it measures, and fills a [`Sheet`]; how that is shown is none of its business.

mod beside;
mod cold;
mod growth;
mod hot;
mod insert_to_line;
mod latency;
mod log;
mod nodes;
mod order;
mod relay;
mod transports;
mod write;

use async_trait::async_trait;

use crate::bed::Bed;
use crate::figures::Sheet;

/// Something to measure.
#[async_trait]
pub(crate) trait Scenario: Sync {
    /// What `--only` calls it.
    fn name(&self) -> &'static str;

    /// Its heading.
    fn title(&self) -> &'static str;

    /// What is measured, and beside what.
    fn about(&self, bed: &Bed) -> String;

    /// Whether it runs on another database than PostgreSQL too. Such a one runs only if it is asked for.
    fn any_database(&self) -> bool {
        false
    }

    /// Whether other tools stand beside ours.
    fn has_peers(&self) -> bool {
        false
    }

    async fn run(&self, bed: &Bed, sheet: &mut Sheet) -> anyhow::Result<()>;
}

/// In the order in which they run and are shown.
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

/// Those of these names, or all that a plain run has.
pub(crate) fn named(names: &[String]) -> anyhow::Result<Vec<&'static dyn Scenario>> {
    if names.is_empty() {
        return Ok(ALL.into_iter().filter(|scenario| !scenario.any_database()).collect());
    }
    let known = || ALL.map(Scenario::name).join(", ");
    let find = |name: &String| {
        let found = ALL.into_iter().find(|scenario| scenario.name() == name);
        found.ok_or_else(|| anyhow::anyhow!("there is no scenario `{name}`; there are: {}", known()))
    };
    names.iter().map(find).collect()
}

/// Runs a scenario. One that fails says so on its sheet: the others have taken half an hour.
pub(crate) async fn run(scenario: &dyn Scenario, bed: &Bed) -> Sheet {
    let mut sheet = Sheet {
        name: scenario.name(),
        title: scenario.title(),
        about: scenario.about(bed),
        ..Sheet::default()
    };
    if let Err(error) = scenario.run(bed, &mut sheet).await {
        sheet.failed = true;
        sheet.notes.push(format!("It failed: {error:#}."));
    }
    sheet
}
