//! Routing of events to destinations. The first route that matches wins.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use outbox::store::Routed;
use outbox::{Backoff, Destination, Event, EventType, Router};

use super::publishers::Publishers;
use crate::config::{Config, Retry, Route};

/// Maximum number of event types whose routes are cached. For other types every route is checked
/// for each event.
const MAX_CACHED_TYPES: usize = 10_000;

/// Immutable list of routes with their destinations.
pub(crate) struct RoutingTable {
    routes: Vec<(Route, Destination)>,
    /// Event types that have a route; `None` means all types.
    routed: Option<Arc<Routed>>,
    by_type: RwLock<HashMap<Box<str>, Arc<TypeRoutes>>>,
}

/// Routes that match an event type.
struct TypeRoutes {
    /// Indexes of the routes, in their order. Ends at the first route that depends on the type
    /// alone.
    candidates: Vec<usize>,
    /// The route of all events of the type, if they all have the same.
    all: Option<usize>,
}

impl RoutingTable {
    /// Creates the table. Every `to` names a publisher, which the check of the settings ensures.
    pub(crate) fn new(config: &Config, publishers: &Publishers) -> Self {
        let defaults = &config.groups.retry;
        let destination = |route: &Route| {
            let destination = publishers.destination(route.to.get_ref())?;
            Some(match &route.retry {
                Some(retry) => destination.retry(retry.policy(defaults, Backoff::publishing())),
                None => destination,
            })
        };
        let routes = config.routes.iter().filter_map(|route| Some((route.clone(), destination(route)?)));
        let routes: Vec<(Route, Destination)> = routes.collect();
        let routed = Self::types(routes.iter().map(|(route, _)| route));
        Self { routes, routed, by_type: RwLock::default() }
    }

    /// Types and patterns of all routes. An event of such a type may still have no route, if the
    /// route has further conditions.
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

    fn routes_of_type(&self, event_type: &str) -> Arc<TypeRoutes> {
        let lock = "no code panics while holding this lock";
        if let Some(known) = self.by_type.read().expect(lock).get(event_type) {
            return known.clone();
        }
        let found = Arc::new(self.find_routes(event_type));
        let mut by_type = self.by_type.write().expect(lock);
        if by_type.len() < MAX_CACHED_TYPES {
            by_type.insert(event_type.into(), found.clone());
        }
        found
    }

    fn find_routes(&self, event_type: &str) -> TypeRoutes {
        let mut candidates = Vec::new();
        for (index, (route, _)) in self.routes.iter().enumerate() {
            if route.matches_type(event_type) {
                candidates.push(index);
                if route.is_by_type_alone() {
                    let all = candidates.iter().all(|one| self.has_same_effect(*one, index)).then_some(index);
                    return TypeRoutes { candidates, all };
                }
            }
        }
        // An event may match none of them.
        TypeRoutes { candidates, all: None }
    }

    /// Whether two routes have the same destination and retry settings.
    fn has_same_effect(&self, one: usize, other: usize) -> bool {
        fn effect(route: &Route) -> (&str, Option<&Retry>) {
            (route.to.get_ref(), route.retry.as_ref())
        }
        effect(&self.routes[one].0) == effect(&self.routes[other].0)
    }
}

impl Router for RoutingTable {
    fn route(&self, event: &Event) -> Option<Destination> {
        let of_type = self.routes_of_type(event.event_type().as_str());
        let mut candidates = of_type.candidates.iter().map(|index| &self.routes[*index]);
        candidates
            .find(|(route, _)| route.matches_conditions(event))
            .map(|(_, destination)| destination.clone())
    }

    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        self.routes_of_type(event_type.as_str()).all.map(|index| self.routes[index].1.clone())
    }

    fn routed(&self) -> Option<Arc<Routed>> {
        self.routed.clone()
    }
}

/// A routing table that can be replaced between two events.
#[derive(Clone)]
pub(crate) struct SharedRoutingTable(Arc<RwLock<Arc<RoutingTable>>>);

impl SharedRoutingTable {
    pub(crate) fn new(table: RoutingTable) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(table))))
    }

    pub(crate) fn set(&self, table: RoutingTable) {
        *self.0.write().expect("no code panics while holding this lock") = Arc::new(table);
    }

    fn get(&self) -> Arc<RoutingTable> {
        self.0.read().expect("no code panics while holding this lock").clone()
    }
}

impl Router for SharedRoutingTable {
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

    use outbox::TracingPublisher;
    use proptest::prelude::*;

    use super::*;

    const PUBLISHERS: [&str; 2] = ["a", "b"];

    fn table(routes: &str) -> RoutingTable {
        let publishers =
            PUBLISHERS.map(|name| format!("[publishers.{name}.file]\npath = \"{name}\"\n")).concat();
        let text = format!("[database]\nurl = \"sqlite:x.db\"\n{publishers}{routes}");
        let config = match Config::parse(&text, &crate::config::Environment::default(), None) {
            Ok(config) => config,
            Err(mistakes) => panic!("{mistakes:?}\n{text}"),
        };
        let publishers =
            Publishers::of(PUBLISHERS.map(|name| (name, Arc::new(TracingPublisher::named(name)) as _)));
        RoutingTable::new(&config, &publishers)
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
    fn the_destination_of_a_type_is_known_if_all_its_events_have_the_same() {
        let routes = table(
            "[[routes]]\ntype = \"a\"\nto = \"a\"\n\
             [[routes]]\ntype = \"b*\"\ntenant = \"*\"\nto = \"b\"\n\
             [[routes]]\ntype = \"c\"\ntenant = \"x\"\nto = \"b\"\n\
             [[routes]]\ntype = \"r\"\ntenant = \"x\"\nto = \"b\"\nretry = { max-attempts = 1 }\n\
             [[routes]]\ntype = [\"c\", \"r\"]\naggregate-type = \"*\"\nto = \"b\"\n",
        );
        let all = |event_type: &'static str| name(routes.of_type(&EventType::from(event_type)));
        assert_eq!(all("a").as_deref(), Some("a"));
        assert_eq!(all("b1"), None, "without a tenant there is no route");
        assert_eq!(all("c").as_deref(), Some("b"), "both routes lead to b");
        assert_eq!(all("r"), None, "its routes have different retry settings");
        assert_eq!(all("d"), None);
        assert_eq!(name(table("[[routes]]\nto = \"b\"\n").of_type(&"x".into())).as_deref(), Some("b"));
    }

    #[test]
    fn the_routed_types_are_known_unless_a_route_matches_all_types() {
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

    /// A route with few different texts, so that many events match.
    fn route() -> impl Strategy<Value = (Option<String>, Option<String>, Option<String>, usize)> {
        let pattern = || proptest::option::of("[ab*]{1,2}");
        (pattern(), pattern(), pattern(), 0..PUBLISHERS.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_routing_table_matches_like_checking_every_route(
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
                // The texts include `c` and a missing value, so a dependence on tenant or header is
                // found.
                let all = name(table.of_type(&event_type.into()));
                if let Some(all) = &all {
                    prop_assert_eq!(seen.iter().flatten().collect::<Vec<_>>(), [all], "{}\n{}", event_type, &text);
                    prop_assert_eq!(seen.len(), 1);
                }
                // `of_type` may be `None` if an earlier route hides another one, but not if all
                // routes of the type agree.
                let candidates = || routes.iter().filter(|(t, ..)| fits(t, Some(event_type)));
                let agree = candidates().all(|(.., to)| Some(to) == candidates().next().map(|(.., first)| first));
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
