//! Summary of a settings file in a few lines, without secrets.

use outbox::settings::file::General;
use serde::Serialize;

use super::Config;
use super::sources::Source;
use crate::database::DatabaseUrl;

impl Config {
    /// Lines grouped by name, in the order of the sample file.
    pub(crate) fn summary(&self) -> Vec<(&'static str, Vec<String>)> {
        let groups = &self.groups;
        let routes = self.routes.iter().map(|route| {
            let retry = route.retry.as_ref().map(|retry| format!(" (retry {})", set(retry)));
            format!("{route} -> {}{}", route.to.get_ref(), retry.unwrap_or_default())
        });
        let topics = self.topics.iter().map(|topic| {
            let to: Vec<&str> = topic.to.iter().map(|to| to.get_ref().as_str()).collect();
            format!("{} -> {}", topic.name.get_ref().as_str(), to.join(", "))
        });
        let publishers =
            self.publishers.iter().map(|(name, publisher)| format!("{name} ({})", publisher.kind));
        let listen = self.http.listen.as_ref().map(|listen| listen.get_ref().to_string());
        let mut lines = vec![
            ("mode", vec![groups.general.mode.unwrap_or_default().name().to_owned()]),
            ("databases", self.databases()),
            ("general", vec![set(&General { mode: None, ..groups.general.clone() })]),
            ("fleet", vec![set(&self.fleet)]),
            ("dispatcher", vec![set(&groups.dispatcher)]),
            ("poller", vec![set(&groups.poller)]),
            ("claim-locking", vec![set(&groups.claim_locking)]),
            ("retry", vec![set(&groups.retry)]),
            ("purge", vec![set(&groups.purge)]),
            ("log", vec![set(&groups.log)]),
            ("backoff", vec![set(&groups.backoff)]),
            ("metrics", vec![set(&groups.metrics)]),
            ("http", listen.into_iter().collect()),
            ("publishers", publishers.collect()),
            ("routes", routes.collect()),
            ("topics", topics.collect()),
        ];
        lines.retain(|(_, lines)| lines.iter().any(|line| !line.is_empty()));
        lines
    }

    fn databases(&self) -> Vec<String> {
        let shown = |url: &str| match DatabaseUrl::parse(url) {
            Ok(url) => match url.unverified() {
                Some(reason) => format!("{url} (server not verified: {reason})"),
                None => url.to_string(),
            },
            Err(_) => String::new(),
        };
        match &self.source {
            Source::One(database) => {
                let url = database.url.as_ref().map(|url| shown(url.get_ref().expose())).unwrap_or_default();
                let table = database.table().map(|table| format!(", table {table}")).unwrap_or_default();
                let schema = database.schema().map(|schema| format!(", schema {schema}")).unwrap_or_default();
                let direct = database.direct_url.as_ref();
                let direct = direct.map(|url| format!(", directly at {}", shown(url.get_ref().expose())));
                vec![format!("{url}{table}{schema}{}", direct.unwrap_or_default())]
            }
            Source::Several(databases) => databases
                .iter()
                .map(|one| {
                    format!("{} at {}", one.name.get_ref().as_str(), shown(one.url.get_ref().expose()))
                })
                .collect(),
            Source::Discovered(discovery) => {
                vec![format!("by a query at {}", shown(discovery.url.get_ref().expose()))]
            }
        }
    }
}

/// Lists the settings of a group that are set: `interval 1s, batch-size 10`.
fn set(group: &impl Serialize) -> String {
    let Ok(serde_json::Value::Object(settings)) = serde_json::to_value(group) else { return String::new() };
    let texts: Vec<String> = settings
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| match value {
            serde_json::Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        })
        .collect();
    texts.join(", ")
}
