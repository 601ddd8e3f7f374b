//! Property tests of request parsing: no input panics, forged input is rejected, and no error
//! repeats a secret.
//!
//! `PROPTEST_CASES` sets the number of cases of each test.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use outbox::store::{Cursor, StatusGroup};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::age::Age;
use crate::auth::Authenticator;
use crate::auth::csrf::CsrfKey;
use crate::auth::hosts::Hosts;
use crate::auth::sessions::{COOKIE, Sessions};
use crate::auth::throttle::Throttle;
use crate::auth::token::{Role, Token};
use crate::cursor::{PageCursor, decode_id, encode_id};
use crate::problem::{ApiResult, Problem};
use crate::text;

/// A valid token.
const TOKEN: &str = "a-token-of-some-length";

/// A host name of this server.
const HOST: &str = "outbox.example.com";

fn age(text: &str) -> Option<Age> {
    serde_json::from_value(text.into()).ok()
}

fn status(problem: Problem) -> StatusCode {
    problem.into_response().status()
}

fn status_group() -> impl Strategy<Value = StatusGroup> {
    prop::sample::select(vec![StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead])
}

/// A cursor with any time that an event can have.
fn cursor() -> impl Strategy<Value = Cursor> {
    (0..253_402_300_800_000_000_i64, any::<i64>()).prop_map(|(micros, seq)| Cursor {
        at: DateTime::from_timestamp_micros(micros).expect("the time is before the year 10000"),
        seq,
    })
}

/// Appends a valid checksum, as any client can.
fn with_checksum(mut bytes: Vec<u8>) -> String {
    bytes.extend(&Sha256::digest(&bytes)[..4]);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Bytes that start like those of a cursor.
fn like_a_cursor() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(vec![]),
        Just(vec![1]),
        Just(vec![1, b'i']),
        Just(vec![1, b'p', 0]),
        Just(vec![1, b'x', 1]),
        Just(vec![2, b'p', 0]),
    ];
    let rest = prop_oneof![
        any::<Vec<u8>>(),
        any::<[u8; 16]>().prop_map(Vec::from),
        any::<String>().prop_map(String::into_bytes),
    ];
    (start, rest).prop_map(|(start, rest)| [start, rest].concat())
}

/// Valid and invalid hosts of requests.
fn authority() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "localhost",
        "127.0.0.1",
        "::1",
        "[::1]",
        "[",
        "]",
        HOST,
        "evil.example",
        ".",
        ":",
        "@",
        "/",
        "8080",
        ":8080",
        ":99999",
        ":+80",
        "x",
        "%",
        " ",
    ]);
    prop_oneof![
        4 => prop::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat()),
        1 => "[ -~]{0,20}",
    ]
}

/// The host that a browser would have connected to, if the authority is valid.
fn host_of(authority: &str) -> Option<String> {
    let url = reqwest::Url::parse(&format!("http://{authority}")).ok()?;
    let plain = url.username().is_empty() && url.password().is_none() && url.path() == "/";
    (plain && url.query().is_none()).then(|| url.host_str().map(str::to_owned))?
}

fn is_allowed(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host == HOST || bare.parse::<std::net::IpAddr>().is_ok()
}

fn authenticator() -> Authenticator {
    Authenticator {
        tokens: vec![Token::new("ops", Role::Operate, TOKEN)],
        identify: None,
        tls: false,
        sessions: Sessions::default(),
        csrf: CsrfKey::generate(),
        throttle: Throttle::new(u32::MAX),
    }
}

/// A request for `/` with these headers.
fn request(headers: HeaderMap) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.headers = headers;
    parts
}

fn with(name: header::HeaderName, value: &[u8]) -> Option<HeaderMap> {
    Some([(name, HeaderValue::from_bytes(value).ok()?)].into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_valid_duration_is_parsed(
        number in 0..1_000_000_u64,
        unit in prop::sample::select(vec![("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)]),
    ) {
        let read = age(&format!("{number}{}", unit.0)).map(|age| age.0.as_millis());
        prop_assert_eq!(read, Some(u128::from(number * unit.1)));
    }

    #[test]
    fn no_other_text_is_a_duration(text in prop_oneof![any::<String>(), "[0-9+ ]{0,8}[a-z]{0,3}"]) {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let looks = (1..=6).contains(&(text.len() - unit.len())) && ["ms", "s", "m", "h", "d"].contains(&unit);
        prop_assert_eq!(age(&text).is_some(), looks);
    }

    #[test]
    fn a_cursor_is_decoded_for_its_own_list_only(
        at in cursor(), status_group in status_group(), newest_first: bool, other in status_group(), order: bool,
    ) {
        let text = PageCursor { status_group, newest_first, at }.encode();
        let read = PageCursor::decode(&text, other, order);
        if (status_group, newest_first) == (other, order) {
            prop_assert_eq!(read.unwrap(), at);
        } else {
            prop_assert_eq!(status(read.unwrap_err()), StatusCode::UNPROCESSABLE_ENTITY);
        }
        prop_assert!(decode_id(&text).is_err());
    }

    /// A cursor that a database would fail on is rejected here: in the database it would cause an
    /// internal error.
    #[test]
    fn a_forged_cursor_is_rejected_or_usable(bytes in like_a_cursor(), has_checksum: bool) {
        let text = if has_checksum { with_checksum(bytes) } else { URL_SAFE_NO_PAD.encode(bytes) };
        match PageCursor::decode(&text, StatusGroup::Pending, false) {
            Ok(at) => prop_assert!(has_checksum && (0..253_402_300_800_000_000).contains(&at.at.timestamp_micros())),
            Err(problem) => prop_assert_eq!(status(problem), StatusCode::UNPROCESSABLE_ENTITY),
        }
        match decode_id(&text) {
            // Other programs choose ids: an id may contain every character except NUL.
            Ok(id) => {
                let is_id = (1..=36).contains(&id.chars().count()) && !id.contains('\0');
                prop_assert!(has_checksum && is_id, "{:?}", id);
            }
            Err(problem) => prop_assert_eq!(status(problem), StatusCode::UNPROCESSABLE_ENTITY),
        }
    }

    #[test]
    fn an_id_is_decoded_unless_a_letter_was_changed(
        id in "\\PC{1,36}", at: prop::sample::Index, letter in prop::sample::select(b"AZaz09-_".to_vec()),
    ) {
        let text = encode_id(&id);
        prop_assert_eq!(decode_id(&text).unwrap(), id);
        let mut changed = text.clone().into_bytes();
        changed[at.index(text.len())] = letter;
        let changed = String::from_utf8(changed).unwrap();
        prop_assert!(changed == text || decode_id(&changed).is_err(), "{} for {}", changed, text);
    }

    #[test]
    fn only_hosts_of_this_server_are_accepted(authority in authority()) {
        let hosts = Hosts::new([HOST]);
        let Some(headers) = with(header::HOST, authority.as_bytes()) else { return Ok(()) };
        let host = host_of(&authority);
        if hosts.check_host(&headers, &Uri::from_static("/")).is_ok() {
            prop_assert!(host.as_deref().is_some_and(is_allowed), "{}: {:?}", authority, host);
        }
    }

    #[test]
    fn only_pages_of_this_server_may_make_changes(
        authority in authority(), scheme in prop::sample::select(vec!["http://", "https://", "://", ""]),
    ) {
        let hosts = Hosts::new([HOST]);
        let Some(mut headers) = with(header::ORIGIN, format!("{scheme}{authority}").as_bytes()) else { return Ok(()) };
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8080"));
        if hosts.check_origin(&headers, &Uri::from_static("/")).is_ok() {
            let ours = host_of(&authority).is_some_and(|host| host == HOST);
            prop_assert!(ours || authority == "127.0.0.1:8080", "{}", authority);
        }
    }

    #[test]
    fn a_token_is_accepted_and_other_text_is_rejected_without_repeating_it(
        scheme in prop_oneof![Just("Bearer ".to_owned()), "[bB][eE][aA][rR][eE][rR] ", "[ -~]{0,8}"],
        secret in prop_oneof![2 => Just(TOKEN.to_owned()), 1 => "[!-~]{8,40}", 1 => "a-token-of-some-lengt[a-z]?"],
        raw in any::<Vec<u8>>(),
    ) {
        let value = format!("{scheme}{secret}");
        let name = |answer: ApiResult<crate::auth::Caller>| answer.map(|caller| caller.name).map_err(|p| format!("{p:?}"));
        let result = name(authenticator().authenticate(&request(with(header::AUTHORIZATION, value.as_bytes()).unwrap())));
        let is_valid = secret == TOKEN && scheme.trim_end().eq_ignore_ascii_case("bearer") && scheme.ends_with(' ');
        prop_assert_eq!(result.is_ok(), is_valid, "{}", value);
        if let Err(error) = result {
            prop_assert!(!error.contains(&secret), "{}", error);
        }
        for header in [header::AUTHORIZATION, header::COOKIE] {
            if let Some(headers) = with(header, &raw) {
                prop_assert!(name(authenticator().authenticate(&request(headers))).is_err());
            }
        }
    }

    #[test]
    fn a_session_is_found_among_any_other_cookies(
        before in prop::collection::vec("[a-z_]{1,20}(=[!#-:<-~]{0,10})?", 0..4), after in "(; ?[ -~]{0,20})?", cut: bool,
    ) {
        let authenticator = authenticator();
        let (cookie, _) = authenticator.sessions.begin("ops", Role::Read);
        let cookie = if cut { &cookie[1..] } else { &cookie };
        let all = format!("{}; {COOKIE}={cookie}{after}", before.join("; "));
        prop_assume!(!before.iter().any(|one| one.starts_with(&format!("{COOKIE}="))));
        let result = authenticator.authenticate(&request(with(header::COOKIE, all.as_bytes()).unwrap()));
        prop_assert_eq!(result.is_ok(), !cut, "{}", all);
    }

    #[test]
    fn a_digest_is_64_hexadecimal_digits_and_errors_do_not_repeat_it(
        text in prop_oneof![any::<String>(), "(sha256:)?[0-9a-fA-F+]{62,66}", "sha256:[0-9a-fA-F]{64}", "sha256:([+][0-9a-f]){32}"],
    ) {
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        let is_one = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let token = Token::of_digest("ops", Role::Read, &text);
        prop_assert_eq!(token.is_ok(), is_one);
        if let Err(error) = token
            && text.len() > 20
        {
            prop_assert!(!error.to_string().contains(&text), "{}", error);
        }
    }

    #[test]
    fn displayed_text_is_short_and_has_no_control_characters(text in any::<String>(), many in 0..50_usize) {
        let shown = text::printable(&text.repeat(many));
        prop_assert!(shown.chars().count() <= 101 && !shown.chars().any(char::is_control), "{:?}", shown);
        prop_assert_eq!(text::check("x", &text, 20).is_ok(), (1..=20).contains(&text.chars().count()) && text::printable(&text) == text);
    }
}
