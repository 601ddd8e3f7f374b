//! The table of routes: which destination an event goes to. The first route that matches wins.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use outbox::store::Routed;
use outbox::{Backoff, Destination, Event, EventType, Router};

use super::outlets::Outlets;
use crate::config::{Config, Retry, Route};

/// How many types of events are remembered. Beyond that every event asks every route.
const REMEMBERED: usize = 10_000;

/// Routes with their destinations, which do not change any more.
pub(crate) struct Table {
    routes: Vec<(Route, Destination)>,
    /// The types that some route is for; `None`: all.
    routed: Option<Arc<Routed>>,
    by_type: RwLock<HashMap<Box<str>, Arc<OfType>>>,
}

/// The routes that are for a type.
struct OfType {
    /// Those to ask, in their order. Behind one that asks for nothing else there is none.
    candidates: Vec<usize>,
    /// The one that all events take, if that is so.
    all: Option<usize>,
}

impl Table {
    /// Every `to` has an outlet: the settings were checked.
    pub(crate) fn new(config: &Config, outlets: &Outlets) -> Self {
        let otherwise = &config.groups.retry;
        let destination = |route: &Route| {
            let destination = outlets.destination(route.to.get_ref())?;
            Some(match &route.retry {
                Some(retry) => destination.retry(retry.policy(otherwise, Backoff::publishing())),
                None => destination,
            })
        };
        let routes = config.routes.iter().filter_map(|route| Some((route.clone(), destination(route)?)));
        let routes: Vec<(Route, Destination)> = routes.collect();
        let routed = Self::types(routes.iter().map(|(route, _)| route));
        Self { routes, routed, by_type: RwLock::default() }
    }

    /// The types that some route is for, by their patterns. An event of such a type may have no route still, if the route asks for
    /// more than the type.
    fn types<'a>(routes: impl Iterator<Item = &'a Route>) -> Option<Arc<Routed>> {
        let mut routed = Routed::default();
        for route in routes {
            for pattern in &route.r#type.as_ref()?.0 {
                if pattern.is_anything() {
                    return None;
                }
                let names = if pattern.is_exact() { &mut routed.types } else { &mut routed.patterns };
                names.insert(pattern.to_string());
            }
        }
        Some(Arc::new(routed))
    }

    fn of(&self, event_type: &str) -> Arc<OfType> {
        let lock = "no one panics while holding this lock";
        if let Some(known) = self.by_type.read().expect(lock).get(event_type) {
            return known.clone();
        }
        let found = Arc::new(self.find(event_type));
        let mut by_type = self.by_type.write().expect(lock);
        if by_type.len() < REMEMBERED {
            by_type.insert(event_type.into(), found.clone());
        }
        found
    }

    fn find(&self, event_type: &str) -> OfType {
        let mut candidates = Vec::new();
        for (index, (route, _)) in self.routes.iter().enumerate() {
            if route.matches_type(event_type) {
                candidates.push(index);
                if route.is_by_type_alone() {
                    let all = candidates.iter().all(|one| self.is_same(*one, index)).then_some(index);
                    return OfType { candidates, all };
                }
            }
        }
        // An event may pass them all.
        OfType { candidates, all: None }
    }

    /// Whether two routes do the same with an event.
    fn is_same(&self, one: usize, other: usize) -> bool {
        fn does(route: &Route) -> (&str, Option<&Retry>) {
            (route.to.get_ref(), route.retry.as_ref())
        }
        does(&self.routes[one].0) == does(&self.routes[other].0)
    }
}

impl Router for Table {
    fn route(&self, event: &Event) -> Option<Destination> {
        let of_type = self.of(event.event_type().as_str());
        let mut candidates = of_type.candidates.iter().map(|index| &self.routes[*index]);
        candidates
            .find(|(route, _)| route.matches_conditions(event))
            .map(|(_, destination)| destination.clone())
    }

    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        self.of(event_type.as_str()).all.map(|index| self.routes[index].1.clone())
    }

    fn routed(&self) -> Option<Arc<Routed>> {
        self.routed.clone()
    }
}

/// A table that another can take the place of, between one event and the next.
#[derive(Clone)]
pub(crate) struct Switch(Arc<RwLock<Arc<Table>>>);

impl Switch {
    pub(crate) fn new(table: Table) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(table))))
    }

    pub(crate) fn set(&self, table: Table) {
        *self.0.write().expect("no one panics while holding this lock") = Arc::new(table);
    }

    fn get(&self) -> Arc<Table> {
        self.0.read().expect("no one panics while holding this lock").clone()
    }
}

impl Router for Switch {
    fn route(&self, event: &Event) -> Option<Destination> {
        self.get().route(event)
    }

    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        self.get().of_type(event_type)
    }

    fn routed(&self) -> Option<Arc<Routed>> {
        self.get().routed()
    }
}

#[cfg(test)]
mod tests {

    use outbox::LogPublisher;
    use proptest::prelude::*;

    use super::*;

    const PUBLISHERS: [&str; 2] = ["a", "b"];

    fn table(routes: &str) -> Table {
        let publishers =
            PUBLISHERS.map(|name| format!("[publishers.{name}.file]\npath = \"{name}\"\n")).concat();
        let text = format!("[database]\nurl = \"sqlite:x.db\"\n{publishers}{routes}");
        let config = match Config::parse(&text, &crate::config::Environment::default(), None) {
            Ok(config) => config,
            Err(mistakes) => panic!("{mistakes:?}\n{text}"),
        };
        let outlets = Outlets::of(PUBLISHERS.map(|name| (name, Arc::new(LogPublisher::named(name)) as _)));
        Table::new(&config, &outlets)
    }

    fn event(event_type: &str, tenant: Option<&str>, header: Option<&str>) -> Event {
        let mut event = Event::new(event_type);
        if let Some(tenant) = tenant {
            event = event.tenant(tenant);
        }
        if let Some(header) = header {
            event = event.header("h", header);
        }
        event.json(&1).build().unwrap()
    }

    fn name(destination: Option<Destination>) -> Option<String> {
        destination.map(|destination| destination.name().to_owned())
    }

    #[test]
    fn the_first_route_that_matches_wins() {
        let table = table(
            "[[routes]]\ntype = [\"order.*\", \"bill\"]\ntenant = \"acme*\"\nto = \"b\"\n\
             [[routes]]\ntype = \"order.*\"\nto = \"a\"\n\
             [[routes]]\nheader = { h = \"*\" }\nto = \"b\"\n",
        );
        let to = |event: &Event| name(table.route(event));
        assert_eq!(to(&event("order.placed", Some("acme-eu"), None)).as_deref(), Some("b"));
        assert_eq!(to(&event("order.placed", Some("globex"), None)).as_deref(), Some("a"));
        assert_eq!(to(&event("order.placed", None, None)).as_deref(), Some("a"));
        assert_eq!(to(&event("bill", Some("acme"), None)).as_deref(), Some("b"));
        assert_eq!(to(&event("bill", None, None)), None);
        assert_eq!(to(&event("bill", None, Some(""))).as_deref(), Some("b"));
    }

    #[test]
    fn where_all_events_of_a_type_go_is_known_or_depends() {
        let routes = table(
            "[[routes]]\ntype = \"a\"\nto = \"a\"\n\
             [[routes]]\ntype = \"b*\"\ntenant = \"*\"\nto = \"b\"\n\
             [[routes]]\ntype = \"c\"\ntenant = \"x\"\nto = \"b\"\n\
             [[routes]]\ntype = \"r\"\ntenant = \"x\"\nto = \"b\"\nretry = { max-attempts = 1 }\n\
             [[routes]]\ntype = [\"c\", \"r\"]\naggregate-type = \"*\"\nto = \"b\"\n",
        );
        let all = |event_type: &'static str| name(routes.of_type(&EventType::from(event_type)));
        assert_eq!(all("a").as_deref(), Some("a"));
        assert_eq!(all("b1"), None, "without a tenant it goes nowhere");
        assert_eq!(all("c").as_deref(), Some("b"), "both ways end in b");
        assert_eq!(all("r"), None, "it is retried in two ways");
        assert_eq!(all("d"), None);
        assert_eq!(name(table("[[routes]]\nto = \"b\"\n").of_type(&"x".into())).as_deref(), Some("b"));
    }

    #[test]
    fn the_types_that_routes_are_for_are_known_unless_one_is_for_all() {
        let some = table(
            "[[routes]]\ntype = [\"order.*\", \"bill\"]\ntenant = \"acme\"\nto = \"b\"\n\
             [[routes]]\ntype = \"bill\"\nto = \"a\"\n",
        );
        let routed = Routed::default().and_type("bill").and_pattern("order.*");
        assert_eq!(some.routed().as_deref(), Some(&routed));
        for all in ["", "type = \"*\"\n", "type = [\"a\", \"**\"]\n", "tenant = \"acme\"\n"] {
            let all = table(&format!("[[routes]]\ntype = \"x\"\nto = \"a\"\n[[routes]]\n{all}to = \"b\"\n"));
            assert_eq!(all.routed(), None);
        }
    }

    /// A route of a small world, so that much of it matches.
    fn route() -> impl Strategy<Value = (Option<String>, Option<String>, Option<String>, usize)> {
        let pattern = || proptest::option::of("[ab*]{1,2}");
        (pattern(), pattern(), pattern(), 0..PUBLISHERS.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_table_says_what_asking_every_route_says(
            routes in proptest::collection::vec(route(), 1..5),
        ) {
            let line = |name: &str, pattern: &Option<String>| {
                pattern.as_ref().map(|pattern| format!("{name} = \"{pattern}\"\n")).unwrap_or_default()
            };
            let text: String = routes.iter().map(|(event_type, tenant, header, to)| {
                let header = header.as_ref().map(|h| format!("header = {{ h = \"{h}\" }}\n")).unwrap_or_default();
                format!("[[routes]]\n{}{}{header}to = \"{}\"\n", line("type", event_type), line("tenant", tenant), PUBLISHERS[*to])
            }).collect();
            let table = table(&text);
            let fits = |pattern: &Option<String>, text: Option<&str>| {
                pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| glob(pattern.as_bytes(), text.as_bytes())))
            };
            let texts = [None, Some("a"), Some("b"), Some("aa"), Some("ab"), Some("ba"), Some("bb"), Some("c")];
            for event_type in texts.into_iter().flatten() {
                let mut seen = std::collections::BTreeSet::new();
                for tenant in texts {
                    for header in texts {
                        let naive = routes.iter().find(|(t, n, h, _)| {
                            fits(t, Some(event_type)) && fits(n, tenant) && fits(h, header)
                        });
                        let naive = naive.map(|(.., to)| PUBLISHERS[*to].to_owned());
                        let found = name(table.route(&event(event_type, tenant, header)));
                        prop_assert_eq!(&found, &naive, "{} {:?} {:?}\n{}", event_type, tenant, header, &text);
                        seen.insert(found);
                    }
                }
                // `c` and the absence of anything are among the texts, so what depends is seen to.
                let all = name(table.of_type(&event_type.into()));
                if let Some(all) = &all {
                    prop_assert_eq!(seen.iter().flatten().collect::<Vec<_>>(), [all], "{}\n{}", event_type, &text);
                    prop_assert_eq!(seen.len(), 1);
                }
                // It may be silent where a route hides behind an earlier one, and never where all that are asked agree.
                let asked = || routes.iter().filter(|(t, ..)| fits(t, Some(event_type)));
                let agree = asked().all(|(.., to)| Some(to) == asked().next().map(|(.., first)| first));
                if agree && seen.len() == 1 {
                    prop_assert_eq!(all, seen.into_iter().next().flatten(), "{}\n{}", event_type, &text);
                }
            }
        }
    }

    fn glob(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
            Some((letter, rest)) => text.first() == Some(letter) && glob(rest, &text[1..]),
        }
    }
}
