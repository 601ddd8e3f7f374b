//! Opaque cursors: positions in a paginated list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Datelike as _};
use outbox::store::{Cursor, StatusGroup};
use sha2::{Digest as _, Sha256};

use crate::problem::{ApiResult, Problem};

/// Incremented when the encoding changes.
const VERSION: u8 = 1;

/// A cursor and the list that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCursor {
    pub(crate) status_group: StatusGroup,
    pub(crate) newest_first: bool,
    pub(crate) at: Cursor,
}

impl PageCursor {
    pub(crate) fn encode(self) -> String {
        let mut bytes = vec![VERSION, code(self.status_group), u8::from(self.newest_first)];
        bytes.extend(self.at.at.timestamp_micros().to_be_bytes());
        bytes.extend(self.at.seq.to_be_bytes());
        encode_checked(bytes)
    }

    /// Rejects a cursor that this server did not encode, or that belongs to another list.
    pub(crate) fn decode(text: &str, status_group: StatusGroup, newest_first: bool) -> ApiResult<Cursor> {
        let bytes = decode_checked(text).ok_or_else(invalid_cursor)?;
        let [VERSION, of_status_group, direction, rest @ ..] = bytes.as_slice() else {
            return Err(invalid_cursor());
        };
        if *of_status_group != code(status_group) || *direction != u8::from(newest_first) {
            return Err(Problem::invalid("the cursor belongs to a list of another status or order"));
        }
        let (at, seq) = rest.split_at_checked(8).ok_or_else(invalid_cursor)?;
        let number = |bytes: &[u8]| bytes.try_into().map(i64::from_be_bytes).map_err(|_| invalid_cursor());
        // No event has a time outside this range, and not every database supports such times.
        let at = DateTime::from_timestamp_micros(number(at)?).filter(|at| (1970..=9999).contains(&at.year()));
        let at = at.ok_or_else(invalid_cursor)?;
        Ok(Cursor { at, seq: number(seq)? })
    }
}

/// Encodes the id of the last row of a page.
pub(crate) fn encode_id(id: &str) -> String {
    encode_checked([&[VERSION, b'i'], id.as_bytes()].concat())
}

pub(crate) fn decode_id(text: &str) -> ApiResult<String> {
    let bytes = decode_checked(text).ok_or_else(invalid_cursor)?;
    let [VERSION, b'i', id @ ..] = bytes.as_slice() else { return Err(invalid_cursor()) };
    let id = String::from_utf8(id.to_vec()).map_err(|_| invalid_cursor())?;
    // A database may fail on text that cannot be an id. An id may contain control characters,
    // except NUL.
    let is_id = (1..=36).contains(&id.chars().count()) && !id.contains('\0');
    is_id.then_some(id).ok_or_else(invalid_cursor)
}

fn code(status_group: StatusGroup) -> u8 {
    match status_group {
        StatusGroup::Pending => b'p',
        StatusGroup::Done => b'd',
        StatusGroup::Dead => b'x',
    }
}

/// Appends a checksum. It protects against mistakes, not against forgery: a cursor only selects a
/// position, and contains nothing confidential.
fn encode_checked(mut bytes: Vec<u8>) -> String {
    bytes.extend(&Sha256::digest(&bytes)[..4]);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode_checked(text: &str) -> Option<Vec<u8>> {
    let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let check = bytes.split_off(bytes.len().checked_sub(4)?);
    (Sha256::digest(&bytes)[..4] == check).then_some(bytes)
}

fn invalid_cursor() -> Problem {
    Problem::invalid("invalid cursor").advice("Use `next` of the previous page unchanged.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_decoded_unchanged_and_only_for_its_own_list() {
        let at = Cursor { at: DateTime::from_timestamp_micros(1_700_000_000_123_456).unwrap(), seq: -7 };
        for status_group in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
            let text = PageCursor { status_group, newest_first: true, at }.encode();
            assert_eq!(PageCursor::decode(&text, status_group, true).unwrap(), at);
            assert!(PageCursor::decode(&text, status_group, false).is_err());
        }
        let dead = PageCursor { status_group: StatusGroup::Dead, newest_first: true, at }.encode();
        assert!(PageCursor::decode(&dead, StatusGroup::Done, true).is_err());
        assert!(decode_id(&dead).is_err());
    }

    #[test]
    fn a_modified_cursor_is_rejected() {
        let at = Cursor { at: DateTime::from_timestamp_micros(0).unwrap(), seq: 1 };
        let text = PageCursor { status_group: StatusGroup::Dead, newest_first: false, at }.encode();
        for n in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[n] = if wrong[n] == b'A' { b'B' } else { b'A' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert!(PageCursor::decode(&wrong, StatusGroup::Dead, false).is_err(), "{wrong}");
        }
        for wrong in ["", "A", "!!!!", "AAAA", "e30", &text[..10]] {
            assert!(
                PageCursor::decode(wrong, StatusGroup::Dead, false).is_err() && decode_id(wrong).is_err(),
                "{wrong}"
            );
        }
        for id in ["01J", "a\u{7}b", " "] {
            assert_eq!(decode_id(&encode_id(id)).unwrap(), id);
        }
    }

    /// The checksum does not prevent forgery: a client can compute a valid one.
    #[test]
    fn an_impossible_position_is_rejected_despite_a_valid_checksum() {
        for year in ["-0001", "+10000", "+262142"] {
            let at = Cursor { at: format!("{year}-01-01T00:00:00Z").parse().unwrap(), seq: 1 };
            let text = PageCursor { status_group: StatusGroup::Dead, newest_first: false, at }.encode();
            assert!(PageCursor::decode(&text, StatusGroup::Dead, false).is_err(), "{year}");
        }
        for id in ["", "a\0b", &"x".repeat(37)] {
            assert!(decode_id(&encode_id(id)).is_err(), "{id:?}");
        }
    }
}
