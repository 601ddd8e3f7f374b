//! Sessions of browsers: a cookie instead of a token, and a second secret that other sites cannot read.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq as _;

use super::token::{Role, digest, random_text};

/// The name of the cookie.
pub(crate) const COOKIE: &str = "outbox_session";

/// How long a session lasts.
pub(crate) const LASTS: Duration = Duration::from_secs(12 * 3_600);

/// How many there are at most; the oldest goes first.
const MOST: usize = 1_000;

/// All sessions, by the digest of what the cookie says: a dump of the memory opens none.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) csrf: String,
    began: Instant,
}

impl Session {
    /// Whether this is the second secret. Takes the same time whatever the difference.
    pub(crate) fn has_csrf(&self, said: &str) -> bool {
        self.csrf.as_bytes().ct_eq(said.as_bytes()).into()
    }
}

impl Sessions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.0.lock().expect("no one panics while holding the sessions")
    }

    /// Begins one. Returns what the cookie says, and the second secret.
    pub(crate) fn begin(&self, name: &str, role: Role) -> (String, String) {
        let (cookie, csrf) = (random_text(), random_text());
        let session = Session { name: name.to_owned(), role, csrf: csrf.clone(), began: Instant::now() };
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.began.elapsed() < LASTS);
        if sessions.len() >= MOST
            && let Some(oldest) = sessions.iter().min_by_key(|(_, s)| s.began).map(|(id, _)| *id)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(digest(&cookie), session);
        (cookie, csrf)
    }

    pub(crate) fn find(&self, cookie: &str) -> Option<Session> {
        let session = self.lock().get(&digest(cookie)).cloned()?;
        (session.began.elapsed() < LASTS).then_some(session)
    }

    pub(crate) fn end(&self, cookie: &str) {
        self.lock().remove(&digest(cookie));
    }
}

/// What the cookie of this name says, of all cookies of a request.
pub(crate) fn cookie_of(cookies: &str) -> Option<&str> {
    let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let (cookie, csrf) = sessions.begin("ops", Role::Operate);
        let session = sessions.find(&cookie).unwrap();
        assert!(session.has_csrf(&csrf) && !session.has_csrf("") && !session.has_csrf(&cookie));
        assert!(sessions.find("other").is_none());
        sessions.end(&cookie);
        assert!(sessions.find(&cookie).is_none());
    }

    #[test]
    fn there_are_never_too_many() {
        let sessions = Sessions::default();
        let (first, _) = sessions.begin("first", Role::Read);
        for _ in 0..MOST {
            sessions.begin("ops", Role::Read);
        }
        assert_eq!(sessions.lock().len(), MOST);
        assert!(sessions.find(&first).is_none());
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(cookie_of("a=1; outbox_session=xyz; b=2"), Some("xyz"));
        assert_eq!(cookie_of("not_outbox_session=xyz"), None);
    }
}
