//! Checks across settings of the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use outbox::settings::Mode;
use outbox::settings::file::{Mistake, Reader, WrittenMode, check_name, check_url, no_such};
use outbox_transports::{Secret, Text};
use toml::Spanned;

use super::Config;
use super::http::probes_refusal;
use super::sources::Source;

impl Config {
    /// Adds mistakes and warnings that concern more than a single setting.
    pub(super) fn check(&self, reader: &mut Reader<'_>) {
        self.groups.check(reader);
        self.check_source(reader);
        self.check_http(reader);
        self.check_destinations(reader);
        self.check_routes(reader);
        self.check_topics(reader);
    }

    fn check_source(&self, reader: &mut Reader<'_>) {
        match &self.source {
            Source::One(database) => database.check(reader),
            Source::Several(databases) => {
                let mut names = BTreeSet::new();
                let mut locations = BTreeMap::new();
                for database in databases {
                    let name = database.name.get_ref().as_str();
                    if !names.insert(name) {
                        reader.wrong(
                            &database.name.span(),
                            format!("a second database named `{name}`: names must be unique"),
                        );
                    }
                    if let Err(reason) = check_name(name) {
                        reader.wrong(&database.name.span(), reason);
                    }
                    let (table, schema) = (database.table(), database.schema());
                    let location = (database.url.get_ref().expose(), table, schema);
                    if let Some(first) = locations.insert(location, name) {
                        reader.wrong(
                            &database.url.span(),
                            format!("the same database as `{first}`: its events would be delivered under both names"),
                        );
                    }
                    check_at(reader, &database.url, table, schema);
                }
                if databases.is_empty() {
                    reader.mistakes.push(Mistake::of_file("`databases` is empty"));
                }
            }
            Source::Discovered(discovery) => check_at(reader, &discovery.url, None, None),
        }
        let advice = match self.groups.mode() {
            Mode::LogOnly => "for several databases, use another mode and `[[topics]]`",
            Mode::WriterOnly => "for several databases, start a relay for each",
            _ => return,
        };
        if self.source.is_fleet() {
            let mode = self.mode_name();
            let reason = format!("`mode = \"{mode}\"` needs one `[database]`: {advice}");
            reader.mistakes.push(Mistake::of_file(reason));
        }
    }

    fn mode_name(&self) -> &'static str {
        WrittenMode(self.groups.mode()).name()
    }

    fn check_http(&self, reader: &mut Reader<'_>) {
        if let Some(listen) = &self.http.listen
            && let Some(reason) = self.http.refusal(*listen.get_ref(), self.http.allow_remote == Some(true))
        {
            reader.wrong(&listen.span(), reason);
        }
        if let Some(listen) = &self.http.probes_listen
            && let Some(reason) = probes_refusal(*listen.get_ref(), self.http.allow_remote == Some(true))
        {
            reader.wrong(&listen.span(), reason);
        }
        for token in &self.http.tokens {
            if let Err(reason) = token.get_ref().token() {
                reader.wrong(&token.span(), reason);
            }
        }
    }

    /// Checks that every `to` names a publisher; warns of publishers that no `to` names.
    fn check_destinations(&self, reader: &mut Reader<'_>) {
        let known: Vec<&str> = self.publishers.keys().map(String::as_str).collect();
        let of_topics = self.topics.iter().flat_map(|topic| &topic.to);
        let mut used = BTreeSet::new();
        for to in self.routes.iter().map(|route| &route.to).chain(of_topics) {
            used.insert(to.get_ref().as_str());
            // A publisher with a mistake must not be reported as missing, too.
            if !known.contains(&to.get_ref().as_str()) && !self.names(to.get_ref()) {
                reader.wrong(&to.span(), no_such("publisher", to.get_ref(), &known));
            }
        }
        for name in known.into_iter().filter(|name| !used.contains(name)) {
            let reason = format!("the publisher `{name}` is not used: no route and no topic names it");
            let span = reader.place("publishers", name);
            reader.odd(&span, reason);
        }
        let standard: Vec<&str> = self
            .publishers
            .iter()
            .filter(|(_, p)| p.kind == "stdout")
            .map(|(name, _)| name.as_str())
            .collect();
        if let [_, second, ..] = standard.as_slice() {
            let reason = format!(
                "the publisher `{second}` is the second one that writes to standard output: only one may"
            );
            let span = reader.place("publishers", second);
            reader.wrong(&span, reason);
        }
    }

    /// Whether the file has a publisher of this name, with or without mistakes.
    fn names(&self, publisher: &str) -> bool {
        self.written.get("publishers").is_some_and(|publishers| publishers.get(publisher).is_some())
    }

    fn check_routes(&self, reader: &mut Reader<'_>) {
        let unused = match self.groups.mode() {
            Mode::LogOnly => Some("`mode = \"log\"` publishes only topics: routes are not used"),
            Mode::WriterOnly => Some("`mode = \"writer-only\"` delivers nothing: routes are not used"),
            _ => None,
        };
        if let Some(reason) = unused {
            if let Some(route) = self.routes.first() {
                reader.wrong(&route.to.span(), reason);
            }
            return;
        }
        if self.routes.is_empty() && reader.mistakes.is_empty() {
            reader.mistakes.push(Mistake::of_file(
                "no `[[routes]]`: no event would be delivered; a route with only `to` matches all events",
            ));
        }
        let mut catch_all: Option<Range<usize>> = None;
        for route in &self.routes {
            if let Some(first) = &catch_all {
                let line = Mistake::line(reader.text, first);
                let reason =
                    format!("this route is never reached: the route on line {line} matches all events");
                reader.odd(&route.to.span(), reason);
            } else if route.matches_all() {
                catch_all = Some(route.to.span());
            }
        }
    }

    fn check_topics(&self, reader: &mut Reader<'_>) {
        match (self.groups.mode(), self.topics.first()) {
            (Mode::LogOnly, None) => {
                reader.mistakes.push(Mistake::of_file("`mode = \"log\"` needs `[[topics]]`"));
            }
            (Mode::WriterOnly, Some(topic)) => {
                let reason =
                    "`mode = \"writer-only\"` publishes nothing: use `mode = \"log\"` to publish topics only";
                reader.wrong(&topic.name.span(), reason);
            }
            _ => {}
        }
        let mut names = BTreeSet::new();
        for topic in &self.topics {
            let name = topic.name.get_ref().as_str();
            if !names.insert(name) {
                reader.wrong(
                    &topic.name.span(),
                    format!("a second topic named `{name}`: names must be unique"),
                );
            }
            let mut to = BTreeSet::new();
            if let Some(twice) = topic.to.iter().find(|one| !to.insert(one.get_ref())) {
                reader.wrong(&twice.span(), format!("`{}` is named twice", twice.get_ref()));
            }
            for other in topic.publishers.keys().filter(|name| !to.contains(name.get_ref())) {
                let reason = format!("`{}` is not among the publishers in `to`", other.get_ref());
                reader.wrong(&other.span(), reason);
            }
            if topic.to.is_empty() {
                reader.wrong(&topic.name.span(), "the topic has no publisher: name publishers in `to`");
            }
            let is_name = |tag: &str| !tag.is_empty() && !tag.contains('=');
            let tags = topic.required_tags.iter().chain(&topic.any_of_tags);
            let mut tags = tags.map(Text::as_str).chain(topic.tag.keys().map(String::as_str));
            if let Some(tag) = tags.find(|tag| !is_name(tag)) {
                let reason = format!(
                    "`{tag}` cannot be the name of a tag; select values by `tag = {{ name = \"value\" }}`"
                );
                reader.wrong(&topic.name.span(), reason);
            }
            if !(1..=100).contains(&name.chars().count()) {
                reader.wrong(&topic.name.span(), "a name has 1 to 100 characters");
            }
        }
    }
}

fn check_at(reader: &mut Reader<'_>, url: &Spanned<Secret>, table: Option<&str>, schema: Option<&str>) {
    if let Err(reason) = check_url(url.get_ref().expose(), table, schema) {
        reader.wrong(&url.span(), reason);
    }
}
