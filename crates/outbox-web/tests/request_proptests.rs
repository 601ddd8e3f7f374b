//! Property tests of requests: whatever a request contains, the response is not 5xx, its status is
//! documented, and it repeats no value that may be a secret.
//!
//! `PROPTEST_CASES` sets the number of requests to each database.

mod common;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{ADMIN, TestServer, document, operations};
use outbox::Event;
use outbox_web::WebBuilder;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};
use sha2::Digest as _;

/// Stands for a secret in the wrong field.
const CANARY: &str = "canary-4111-1111";

/// A text value of a query or a body.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just(CANARY.to_owned()),
        1 => Just(format!("x, expected {CANARY}")),
        2 => any::<String>(),
        1 => Just("\0".to_owned()),
        1 => Just(String::new()),
        1 => "[a-z]{300}",
        1 => any::<i64>().prop_map(|number| number.to_string()),
        3 => prop::sample::select(BOUNDARY_VALUES.to_vec()).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["5m", "done", "pending", "main", "completed", "2020-01-01T00:00:00Z", "start", "inbox"])
            .prop_map(str::to_owned),
        1 => cursor(),
    ]
}

/// A cursor with a valid checksum, as any client can compute it.
fn with_checksum(start: &[u8], rest: &[u8]) -> String {
    let mut bytes = [start, rest].concat();
    bytes.extend(&sha2::Sha256::digest(&bytes)[..4]);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A position at a number of days since 1970.
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
    (start, rest).prop_map(|(start, rest)| with_checksum(start, &rest))
}

/// Boundary values.
fn boundary_values() -> Vec<String> {
    let mut boundary_values: Vec<String> = BOUNDARY_VALUES.map(str::to_owned).into();
    boundary_values.extend([CANARY.to_owned(), format!("x, expected {CANARY}"), "x".repeat(300)]);
    boundary_values
        .extend([-95_000_000, 95_000_000].map(|day| with_checksum(b"\x01p\x00", &at_day(day, i64::MIN))));
    boundary_values.extend([with_checksum(b"\x01i", b"a\0b")]);
    boundary_values
}

const BOUNDARY_VALUES: [&str; 7] =
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

/// The field names of all bodies.
fn names_in_bodies() -> Vec<String> {
    let schemas = ["ReplayRequest", "DeadFilter", "PurgeRequest", "ResetRequest", "NewPayload", "SignIn"];
    let names = schemas.iter().flat_map(|schema| {
        let fields = document()["components"]["schemas"][schema]["properties"].as_object();
        fields.unwrap_or_else(|| panic!("schema {schema} not found")).keys().cloned()
    });
    names.collect()
}

#[derive(Clone, Debug)]
enum Body {
    Json(Value),
    /// Some of the fields of the operation, with these values.
    Fields(Vec<(Index, Value)>),
    Raw(Vec<u8>),
}

/// A request, independent of the server.
#[derive(Clone, Debug)]
struct RequestCase {
    operation: Index,
    /// For the parameters of a path: the id of an event, or any bytes.
    path_params: Vec<Option<Vec<u8>>>,
    /// A query parameter of the operation, or an unknown name.
    query: Vec<(Option<Index>, String)>,
    body: Body,
}

fn request_case() -> impl Strategy<Value = RequestCase> {
    let path_param = prop_oneof![text().prop_map(String::into_bytes), any::<Vec<u8>>()];
    let body = prop_oneof![
        2 => value().prop_map(Body::Json),
        4 => prop::collection::vec((any::<Index>(), value()), 0..4).prop_map(Body::Fields),
        1 => any::<Vec<u8>>().prop_map(Body::Raw),
        1 => value().prop_map(|value| Body::Raw(value.to_string()[1..].into())),
    ];
    (
        any::<Index>(),
        prop::collection::vec(prop::option::of(path_param), 2),
        prop::collection::vec((prop::option::weighted(0.95, any::<Index>()), text()), 0..3),
        body,
    )
        .prop_map(|(operation, path_params, query, body)| RequestCase {
            operation,
            path_params,
            query,
            body,
        })
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}

/// The schema of an operation's body.
fn schema(operation: &Value) -> &'static Value {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    let name = schema.as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    &document()["components"]["schemas"][name]
}

fn fields(operation: &Value) -> Vec<String> {
    let fields = schema(operation)["properties"].as_object();
    fields.map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
}

fn parameters(operation: &Value) -> Vec<&str> {
    let all = operation["parameters"].as_array().into_iter().flatten();
    all.filter(|one| one["in"] == "query").filter_map(|one| one["name"].as_str()).collect()
}

/// All operations except the endless stream.
fn finite_operations() -> Vec<(String, String, &'static Value)> {
    operations().into_iter().filter(|(_, path, _)| path != "/api/outbox/live").collect()
}

/// The path with its parameters filled.
fn fill_path<'a>(template: &str, mut fill: impl FnMut() -> String + 'a) -> String {
    let fill = |part: &str| if part.starts_with('{') { fill() } else { part.to_owned() };
    template.split('/').map(fill).collect::<Vec<_>>().join("/")
}

/// Sends a request. The response may repeat the name of a missing object, but no other value.
async fn send(
    server: &TestServer,
    method: &str,
    path: &str,
    body: Vec<u8>,
    may_repeat: bool,
) -> Result<(), TestCaseError> {
    let mut request = server.request(method, path);
    if path != "/api/outbox/session" {
        request = request.bearer_auth(ADMIN);
    }
    if method != "GET" {
        request = request.header("content-type", "application/json").body(body.clone());
    }
    let response = server.send(request).await;
    let context = || format!("{method} {path} {}: {}", String::from_utf8_lossy(&body), response.text);
    prop_assert!(response.status.as_u16() < 500, "{}", context());
    let repeats_value = response.status.is_client_error() && response.text.contains(CANARY);
    prop_assert!(!repeats_value || may_repeat, "{}", context());
    Ok(())
}

async fn check_case(server: &TestServer, id: &str, request_case: &RequestCase) -> Result<(), TestCaseError> {
    let all = finite_operations();
    let (method, template, operation) = request_case.operation.get(&all);
    let mut path_params = request_case.path_params.iter();
    let path_param =
        || path_params.next().and_then(Option::as_ref).map_or_else(|| id.to_owned(), |bytes| escaped(bytes));
    let mut path = fill_path(template, path_param);
    let parameters = parameters(operation);
    let mut may_repeat =
        request_case.path_params.iter().flatten().any(|bytes| bytes.ends_with(CANARY.as_bytes()));
    for (n, (name, value)) in request_case.query.iter().enumerate() {
        let name = match name {
            Some(name) if !parameters.is_empty() => *name.get(&parameters),
            _ => "no_such_parameter",
        };
        may_repeat |= name == "database";
        path += &format!("{}{name}={}", if n == 0 { '?' } else { '&' }, escaped(value.as_bytes()));
    }
    let body = match &request_case.body {
        Body::Json(value) => value.to_string().into_bytes(),
        Body::Raw(bytes) => bytes.clone(),
        Body::Fields(pairs) => {
            let names = fields(operation);
            let pairs = pairs.iter().filter(|_| !names.is_empty());
            let object: Value =
                pairs.map(|(name, value)| (name.get(&names).clone(), value.clone())).collect();
            object.to_string().into_bytes()
        }
    };
    send(server, method, &path, body, may_repeat).await
}

fn without_throttle(builder: WebBuilder) -> WebBuilder {
    builder.wrong_tokens_per_minute(u32::MAX)
}

#[test]
fn no_request_causes_a_server_error_or_is_repeated_in_the_response() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for server in runtime.block_on(TestServer::on_all_databases_with(without_throttle)) {
        let id = runtime.block_on(server.dead(Event::new("order").ordering_key("k").json(&json!({})), "no"));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let done = runner.run(&request_case(), |request_case| {
            runtime.block_on(check_case(&server, id.as_str(), &request_case))
        });
        done.unwrap_or_else(|error| panic!("{:?}: {error}", server.store));
    }
}

#[tokio::test]
async fn no_boundary_value_causes_a_server_error_in_any_parameter() {
    for server in TestServer::on_all_databases_with(without_throttle).await {
        let id = server.dead(Event::new("order").ordering_key("k").json(&json!({})), "no").await;
        for (method, template, operation) in finite_operations() {
            let path = fill_path(&template, || id.to_string());
            let mut all = Vec::new();
            for value in boundary_values() {
                for name in parameters(operation) {
                    all.push((
                        format!("{path}?{name}={}", escaped(value.as_bytes())),
                        json!({}),
                        name == "database",
                    ));
                }
                for name in fields(operation) {
                    let mut example = schema(operation)["example"].clone();
                    example[&name] = value.as_str().into();
                    all.push((path.clone(), example, false));
                    all.push((path.clone(), json!({ name: value.as_str() }), false));
                }
                if template.contains('{') {
                    all.push((fill_path(&template, || escaped(value.as_bytes())), json!({}), true));
                }
            }
            for (path, body, may_repeat) in all {
                let sent = send(&server, &method, &path, body.to_string().into_bytes(), may_repeat).await;
                sent.unwrap_or_else(|error| panic!("{:?}: {error}", server.store));
            }
        }
    }
}
