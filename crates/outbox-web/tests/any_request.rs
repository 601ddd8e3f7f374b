//! Whatever a request says, it is not the server's mistake: no answer is 5xx, each is one that the document tells of, and none
//! repeats a value that may be a secret.
//!
//! `PROPTEST_CASES` says how many requests are tried on each database.

mod site;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use outbox::Event;
use outbox_web::WebBuilder;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};
use sha2::Digest as _;
use site::{ADMIN, Site, document, operations};

/// Stands for a secret that somebody put in the wrong place.
const CANARY: &str = "canary-4111-1111";

/// A value of a query or a body, as a text.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just(CANARY.to_owned()),
        1 => Just(format!("x, expected {CANARY}")),
        2 => any::<String>(),
        1 => Just("\0".to_owned()),
        1 => Just(String::new()),
        1 => "[a-z]{300}",
        1 => any::<i64>().prop_map(|number| number.to_string()),
        3 => prop::sample::select(EDGES.to_vec()).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["5m", "done", "pending", "main", "completed", "2020-01-01T00:00:00Z", "start", "inbox"])
            .prop_map(str::to_owned),
        1 => cursor(),
    ]
}

/// A cursor with a check that fits: whoever reads the code can make one.
fn sealed(start: &[u8], rest: &[u8]) -> String {
    let mut bytes = [start, rest].concat();
    bytes.extend(&sha2::Sha256::digest(&bytes)[..4]);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// At so many days since 1970.
fn at_day(day: i64, seq: i64) -> Vec<u8> {
    [(day * 86_400_000_000).to_be_bytes(), seq.to_be_bytes()].concat()
}

fn cursor() -> impl Strategy<Value = String> {
    let start =
        prop::sample::select(vec![&b"\x01i"[..], b"\x01p\x00", b"\x01p\x01", b"\x01x\x00", b"\x01d\x00"]);
    let rest = prop_oneof![
        any::<[u8; 16]>().prop_map(Vec::from),
        (-95_000_000..95_000_000_i64, any::<i64>()).prop_map(|(day, seq)| at_day(day, seq)),
        "\\PC{0,3}\0?\\PC{0,40}".prop_map(String::into_bytes),
    ];
    (start, rest).prop_map(|(start, rest)| sealed(start, &rest))
}

/// Values at the edges of what can be.
fn edges() -> Vec<String> {
    let mut edges: Vec<String> = EDGES.map(str::to_owned).into();
    edges.extend([CANARY.to_owned(), format!("x, expected {CANARY}"), "x".repeat(300)]);
    edges.extend([-95_000_000, 95_000_000].map(|day| sealed(b"\x01p\x00", &at_day(day, i64::MIN))));
    edges.extend([sealed(b"\x01i", b"a\0b")]);
    edges
}

const EDGES: [&str; 7] =
    ["", "\0", "-1", "9223372036854775807", "999999d", "-262143-01-01T00:00:00Z", "+262142-12-31T23:59:59Z"];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => text().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((any::<Index>(), inner), 0..3).prop_map(|pairs| {
                let names = names_in_bodies();
                pairs.into_iter().map(|(name, value)| (name.get(&names).clone(), value)).collect()
            }),
        ]
    })
}

/// The names of all fields of all bodies.
fn names_in_bodies() -> Vec<String> {
    let schemas = ["Replay", "DeadFilter", "PurgeAsk", "Reset", "NewPayload", "SignIn"];
    let names = schemas.iter().flat_map(|schema| {
        let fields = document()["components"]["schemas"][schema]["properties"].as_object();
        fields.unwrap_or_else(|| panic!("there is no body {schema}")).keys().cloned()
    });
    names.collect()
}

#[derive(Clone, Debug)]
enum Body {
    Json(Value),
    /// Of the names that this path takes, some, with these values.
    Fields(Vec<(Index, Value)>),
    Raw(Vec<u8>),
}

/// A request, without the server that it goes to.
#[derive(Clone, Debug)]
struct Asked {
    operation: Index,
    /// For the places of a path: the id of an event, or any bytes.
    places: Vec<Option<Vec<u8>>>,
    /// A parameter that the path takes, or a name that none takes.
    query: Vec<(Option<Index>, String)>,
    body: Body,
}

fn asked() -> impl Strategy<Value = Asked> {
    let place = prop_oneof![text().prop_map(String::into_bytes), any::<Vec<u8>>()];
    let body = prop_oneof![
        2 => value().prop_map(Body::Json),
        4 => prop::collection::vec((any::<Index>(), value()), 0..4).prop_map(Body::Fields),
        1 => any::<Vec<u8>>().prop_map(Body::Raw),
        1 => value().prop_map(|value| Body::Raw(value.to_string()[1..].into())),
    ];
    (
        any::<Index>(),
        prop::collection::vec(prop::option::of(place), 2),
        prop::collection::vec((prop::option::weighted(0.95, any::<Index>()), text()), 0..3),
        body,
    )
        .prop_map(|(operation, places, query, body)| Asked { operation, places, query, body })
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// What the document says of the body of an operation.
fn schema(told: &Value) -> &'static Value {
    let schema = &told["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    let name = schema.as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    &document()["components"]["schemas"][name]
}

fn fields(told: &Value) -> Vec<String> {
    let fields = schema(told)["properties"].as_object();
    fields.map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
}

fn parameters(told: &Value) -> Vec<&str> {
    let all = told["parameters"].as_array().into_iter().flatten();
    all.filter(|one| one["in"] == "query").filter_map(|one| one["name"].as_str()).collect()
}

/// What can be asked. A stream without end is not an answer to wait for.
fn answered() -> Vec<(String, String, &'static Value)> {
    operations().into_iter().filter(|(_, path, _)| path != "/api/outbox/live").collect()
}

/// The path with the places filled.
fn filled<'a>(template: &str, mut fill: impl FnMut() -> String + 'a) -> String {
    let fill = |part: &str| if part.starts_with('{') { fill() } else { part.to_owned() };
    template.split('/').map(fill).collect::<Vec<_>>().join("/")
}

/// Sends it. What names a thing that is not there may be named in the answer; no other value is.
async fn send(
    site: &Site,
    method: &str,
    path: &str,
    body: Vec<u8>,
    may_be_named: bool,
) -> Result<(), TestCaseError> {
    let mut request = site.request(method, path);
    if path != "/api/outbox/session" {
        request = request.bearer_auth(ADMIN);
    }
    if method != "GET" {
        request = request.header("content-type", "application/json").body(body.clone());
    }
    let answer = site.send(request).await;
    let asked = || format!("{method} {path} {}: {}", String::from_utf8_lossy(&body), answer.text);
    prop_assert!(answer.status.as_u16() < 500, "{}", asked());
    let told = answer.status.is_client_error() && answer.text.contains(CANARY);
    prop_assert!(!told || may_be_named, "{}", asked());
    Ok(())
}

async fn holds(site: &Site, id: &str, asked: &Asked) -> Result<(), TestCaseError> {
    let all = answered();
    let (method, template, told) = asked.operation.get(&all);
    let mut places = asked.places.iter();
    let place =
        || places.next().and_then(Option::as_ref).map_or_else(|| id.to_owned(), |bytes| escaped(bytes));
    let mut path = filled(template, place);
    let parameters = parameters(told);
    let mut may_be_named = asked.places.iter().flatten().any(|bytes| bytes.ends_with(CANARY.as_bytes()));
    for (n, (name, value)) in asked.query.iter().enumerate() {
        let name = match name {
            Some(name) if !parameters.is_empty() => *name.get(&parameters),
            _ => "no_such_parameter",
        };
        may_be_named |= name == "database";
        path += &format!("{}{name}={}", if n == 0 { '?' } else { '&' }, escaped(value.as_bytes()));
    }
    let body = match &asked.body {
        Body::Json(value) => value.to_string().into_bytes(),
        Body::Raw(bytes) => bytes.clone(),
        Body::Fields(pairs) => {
            let names = fields(told);
            let pairs = pairs.iter().filter(|_| !names.is_empty());
            let object: Value =
                pairs.map(|(name, value)| (name.get(&names).clone(), value.clone())).collect();
            object.to_string().into_bytes()
        }
    };
    send(site, method, &path, body, may_be_named).await
}

fn patient(builder: WebBuilder) -> WebBuilder {
    builder.wrong_tokens_per_minute(u32::MAX)
}

#[test]
fn no_request_is_the_servers_mistake_and_none_is_answered_with_what_it_said() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for site in runtime.block_on(Site::everywhere_with(patient)) {
        let id = runtime.block_on(site.dead(Event::new("order").ordering_key("k").json(&json!({})), "no"));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let done = runner.run(&asked(), |asked| runtime.block_on(holds(&site, id.as_str(), &asked)));
        done.unwrap_or_else(|error| panic!("{:?}: {error}", site.store));
    }
}

#[tokio::test]
async fn no_value_at_an_edge_is_the_servers_mistake_in_any_place() {
    for site in Site::everywhere_with(patient).await {
        let id = site.dead(Event::new("order").ordering_key("k").json(&json!({})), "no").await;
        for (method, template, told) in answered() {
            let path = filled(&template, || id.to_string());
            let mut all = Vec::new();
            for edge in edges() {
                for name in parameters(told) {
                    all.push((
                        format!("{path}?{name}={}", escaped(edge.as_bytes())),
                        json!({}),
                        name == "database",
                    ));
                }
                for name in fields(told) {
                    let mut example = schema(told)["example"].clone();
                    example[&name] = edge.as_str().into();
                    all.push((path.clone(), example, false));
                    all.push((path.clone(), json!({ name: edge.as_str() }), false));
                }
                if template.contains('{') {
                    all.push((filled(&template, || escaped(edge.as_bytes())), json!({}), true));
                }
            }
            for (path, body, may_be_named) in all {
                let sent = send(&site, &method, &path, body.to_string().into_bytes(), may_be_named).await;
                sent.unwrap_or_else(|error| panic!("{:?}: {error}", site.store));
            }
        }
    }
}
