//! Callers that the application identifies itself, without a token.

use std::sync::Arc;

use axum::http::request::Parts;
use outbox::escape::is_unsafe;

use super::token::{Role, Token};
use crate::problem::{ApiResult, Kind, Problem};
use crate::text::printable;

/// Maximum length of the name of an actor, in characters. With the prefix `api:` it must fit into
/// the columns that hold the owner of a lease, 128 characters.
const MAX_NAME_LEN: usize = 120;

/// Identifies the sender of a request.
pub(crate) type Identify = Arc<dyn Fn(&Parts) -> Option<Actor> + Send + Sync>;

/// A caller that the application has identified: the name that audit entries show, and a role. See
/// [`WebBuilder::actor`](crate::WebBuilder::actor).
///
/// ```
/// use outbox_web::{Actor, Role};
///
/// let ada = Actor::new("ada@example.com", Role::Operate);
/// assert_eq!((ada.name(), ada.role()), ("ada@example.com", Role::Operate));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: String,
    role: Role,
}

impl Actor {
    /// An actor with this name and role. The name has 1 to 120 characters, no control characters
    /// (nor those that change the direction of text), and is not the name of a token: a request of
    /// any other actor is rejected, since audit entries could not tell who made it.
    pub fn new(name: impl Into<String>, role: Role) -> Self {
        Self { name: name.into(), role }
    }

    /// The name of the actor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role of the actor.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Rejects a name that audit entries cannot hold, or that a token has.
    pub(super) fn check(self, tokens: &[Token]) -> ApiResult<Self> {
        let length = self.name.chars().take(MAX_NAME_LEN + 1).count();
        let reason = if !(1..=MAX_NAME_LEN).contains(&length) {
            format!("must have 1 to {MAX_NAME_LEN} characters")
        } else if self.name.contains(is_unsafe) {
            "must not have control characters".to_owned()
        } else if tokens.iter().any(|token| token.name == self.name) {
            "is the name of a token".to_owned()
        } else {
            return Ok(self);
        };
        let start: String = self.name.chars().take(MAX_NAME_LEN).collect();
        tracing::warn!(actor = printable(&start), reason, "request rejected: invalid name of an actor");
        Err(Problem::new(Kind::NoAccess, format!("the name that the application gives this caller {reason}"))
            .advice("The application chooses the name in the function of `WebBuilder::actor`."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_audit_entries_cannot_tell_apart_is_rejected() {
        let tokens = [Token::new("ops", Role::Read, "a-secret-of-some-length")];
        let check =
            |name: &str| Actor::new(name, Role::Admin).check(&tokens).map_err(|p| p.detail().to_owned());
        for good in ["ada", "ada@example.com", "Ада", &"x".repeat(120)] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "ada\nroot",
            "ada\0",
            "\u{9b}2Jada",
            "\u{202e}ada",
            "ops",
            &"x".repeat(121),
            &"x".repeat(10_000),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.len() < 200 && !error.contains(is_unsafe), "{error}");
        }
    }
}
