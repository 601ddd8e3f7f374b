//! Validation and display of text from requests.

use crate::problem::{ApiResult, Problem};

/// Text from a request in displayable form: shortened, and without control characters.
pub(crate) fn printable(text: &str) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(100).collect();
    if text.chars().count() > 100 { format!("{shown}…") } else { shown }
}

/// Rejects text that cannot be stored: empty, too long, or with control characters.
pub(crate) fn check(what: &str, text: &str, longest: usize) -> ApiResult<()> {
    let length = text.chars().count();
    if length == 0 || length > longest {
        return Err(Problem::bad(format!("`{what}` must have 1 to {longest} characters")));
    }
    if text.chars().any(char::is_control) {
        return Err(Problem::bad(format!("`{what}` must not have control characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_text_is_short_and_printable() {
        assert_eq!(printable("a\nb\0"), "a\u{fffd}b\u{fffd}");
        assert_eq!(printable(&"ä".repeat(200)).chars().count(), 101);
    }

    #[test]
    fn invalid_text_is_rejected() {
        assert!(check("x", "fine", 4).is_ok());
        for bad in ["", "fünf!", "a\0"] {
            assert!(check("x", bad, 4).is_err(), "{bad:?}");
        }
    }
}
