//! Patterns in which `*` stands for any sequence of characters, including none.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// One pattern, split at its stars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    start: Box<str>,
    middle: Box<[Box<str>]>,
    /// `None` without a star: then `start` is the whole pattern.
    end: Option<Box<str>>,
}

impl Pattern {
    pub(crate) fn new(written: &str) -> Self {
        let mut pieces = written.split('*');
        let start = pieces.next().unwrap_or_default().into();
        let end = pieces.next_back().map(Into::into);
        // Adjacent stars are equivalent to one.
        let middle = pieces.filter(|piece| !piece.is_empty()).map(Into::into).collect();
        Self { start, middle, end }
    }

    /// Whether the pattern matches every text.
    pub(crate) fn is_anything(&self) -> bool {
        self.start.is_empty() && self.middle.is_empty() && self.end.as_deref() == Some("")
    }

    /// Whether the pattern has no star, so that it matches one text.
    pub(crate) fn is_exact(&self) -> bool {
        self.end.is_none()
    }

    /// Whether the pattern matches this text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(end) = &self.end else { return *self.start == *text };
        let Some(rest) = text.strip_prefix(&*self.start) else { return false };
        let Some(mut rest) = rest.strip_suffix(&**end) else { return false };
        // The first match of a piece leaves the longest rest for the following pieces.
        for piece in &self.middle {
            match rest.find(&**piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        true
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start)?;
        for piece in &self.middle {
            write!(f, "*{piece}")?;
        }
        match &self.end {
            Some(end) => write!(f, "*{end}"),
            None => Ok(()),
        }
    }
}

/// One or several patterns, of which one has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patterns(pub(crate) Vec<Pattern>);

impl Patterns {
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(text))
    }

    pub(crate) fn is_anything(&self) -> bool {
        self.0.iter().any(Pattern::is_anything)
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<String> = self.0.iter().map(Pattern::to_string).collect();
        f.write_str(&patterns.join(" | "))
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Patterns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern such as \"order.*\", or several in brackets")
            }

            fn visit_str<E: Error>(self, written: &str) -> Result<Patterns, E> {
                if written.is_empty() {
                    return Err(E::custom("an empty pattern matches nothing: use `*` to match anything"));
                }
                Ok(Patterns(vec![Pattern::new(written)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut several: A) -> Result<Patterns, A::Error> {
                let mut patterns = Vec::new();
                while let Some(Patterns(more)) = several.next_element()? {
                    patterns.extend(more);
                }
                if patterns.is_empty() {
                    return Err(A::Error::custom("an empty list matches nothing: use `*` to match anything"));
                }
                Ok(Patterns(patterns))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation: matches character by character.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((letter, rest)) => text.first() == Some(letter) && naive(rest, &text[1..]),
        }
    }

    #[test]
    fn a_star_matches_any_sequence_of_characters() {
        for (pattern, matches, does_not) in [
            ("order.placed", vec!["order.placed"], vec!["order.placed2", "order", ""]),
            ("order.*", vec!["order.", "order.placed", "order.a.b"], vec!["order", "orders.x"]),
            ("*.placed", vec!["order.placed", ".placed"], vec!["placed", "order.placed.x"]),
            ("*", vec!["", "anything"], vec![]),
            ("a*a", vec!["aa", "aba"], vec!["a", "ab"]),
            ("a**b", vec!["ab", "axb"], vec!["a"]),
        ] {
            for text in matches {
                assert!(Pattern::new(pattern).matches(text), "{pattern} {text}");
            }
            for text in does_not {
                assert!(!Pattern::new(pattern).matches(text), "{pattern} {text}");
            }
        }
        assert!(Pattern::new("**").is_anything() && !Pattern::new("a*").is_anything());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_compiled_pattern_matches_like_a_naive_one(pattern in "[abé*]{0,6}", text in "[abé]{0,8}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = naive(&letters(&pattern), &letters(&text));
            prop_assert_eq!(Pattern::new(&pattern).matches(&text), expected);
            prop_assert_eq!(Pattern::new(&Pattern::new(&pattern).to_string()).matches(&text), expected);
        }
    }
}
