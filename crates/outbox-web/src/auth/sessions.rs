//! Browser sessions: a cookie instead of a token, and a CSRF token that other sites cannot read.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::token::{Role, digest, random_text};

/// Base name of the session cookie; see [`cookie_name`].
pub(crate) const COOKIE: &str = "outbox_session";

/// Name of a cookie of a server at this port, as requested by the browser. Browsers share cookies
/// between all ports of a host: without the port in the name, two servers on one machine would
/// overwrite each other's cookie. With TLS, the prefix `__Host-` makes the browser reject a
/// cookie of that name that was set without TLS or by another host of the domain.
pub(crate) fn cookie_name(base: &str, tls: bool, port: Option<&str>) -> String {
    let prefix = if tls { "__Host-" } else { "" };
    match port {
        Some(port) => format!("{prefix}{base}_{port}"),
        None => format!("{prefix}{base}"),
    }
}

/// Lifetime of a session.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3_600);

/// Maximum number of sessions; the oldest is evicted first.
const MAX_SESSIONS: usize = 1_000;

/// All sessions, by the digest of the cookie value: a memory dump does not reveal a usable cookie.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) csrf: String,
    began: Instant,
    /// Cancelled when the session ends before it expires.
    ended: CancellationToken,
}

impl Session {
    /// Resolves when the session has ended: signed out, evicted, or expired.
    pub(crate) async fn closed(&self) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = tokio::time::sleep_until(self.began + SESSION_LIFETIME) => {}
        }
    }
}

impl Sessions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.0.lock().expect("the lock on the sessions is never poisoned")
    }

    /// Starts a session. Returns the cookie value and the session.
    pub(crate) fn begin(&self, name: &str, role: Role) -> (String, Session) {
        let cookie = random_text();
        let (began, ended) = (Instant::now(), CancellationToken::new());
        let session = Session { name: name.to_owned(), role, csrf: random_text(), began, ended };
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.began.elapsed() < SESSION_LIFETIME);
        if sessions.len() >= MAX_SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, s)| s.began).map(|(id, _)| *id)
            && let Some(session) = sessions.remove(&oldest)
        {
            session.ended.cancel();
        }
        sessions.insert(digest(&cookie), session.clone());
        (cookie, session)
    }

    pub(crate) fn find(&self, cookie: &str) -> Option<Session> {
        let session = self.lock().get(&digest(cookie)).cloned()?;
        (session.began.elapsed() < SESSION_LIFETIME).then_some(session)
    }

    pub(crate) fn end(&self, cookie: &str) {
        if let Some(session) = self.lock().remove(&digest(cookie)) {
            session.ended.cancel();
        }
    }
}

/// Value of the cookie with this name, in a `Cookie` header.
pub(crate) fn cookie_of<'r>(cookies: &'r str, wanted: &str) -> Option<&'r str> {
    let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let (cookie, begun) = sessions.begin("ops", Role::Operate);
        let session = sessions.find(&cookie).unwrap();
        assert!(session.csrf == begun.csrf && session.csrf != cookie);
        assert!(sessions.find("other").is_none());
        sessions.end(&cookie);
        assert!(sessions.find(&cookie).is_none());
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let sessions = Sessions::default();
        let (first, _) = sessions.begin("first", Role::Read);
        for _ in 0..MAX_SESSIONS {
            sessions.begin("ops", Role::Read);
        }
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
        assert!(sessions.find(&first).is_none());
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(cookie_of("a=1; outbox_session=xyz; b=2", COOKIE), Some("xyz"));
        assert_eq!(cookie_of("not_outbox_session=xyz", COOKIE), None);
        let named = cookie_name(COOKIE, false, Some("8080"));
        assert_eq!(
            cookie_of("outbox_session_80=a; outbox_session_8080=b; outbox_session=c", &named),
            Some("b")
        );
        assert_eq!(cookie_name(COOKIE, true, None), "__Host-outbox_session");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_closed_when_signed_out_evicted_or_expired() {
        let sessions = Sessions::default();
        let (cookie, _) = sessions.begin("ops", Role::Read);
        let ended = sessions.find(&cookie).unwrap();
        assert!(
            tokio::time::timeout(SESSION_LIFETIME / 2, ended.closed()).await.is_err(),
            "the session continues"
        );
        sessions.end(&cookie);
        ended.closed().await;

        let (cookie, _) = sessions.begin("ops", Role::Read);
        let evicted = sessions.find(&cookie).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..MAX_SESSIONS {
            sessions.begin("ops", Role::Read);
        }
        assert!(tokio::time::timeout(SESSION_LIFETIME / 2, evicted.closed()).await.is_ok());

        let (cookie, _) = sessions.begin("ops", Role::Read);
        let expired = sessions.find(&cookie).unwrap();
        let began = Instant::now();
        expired.closed().await;
        assert!(began.elapsed() >= SESSION_LIFETIME && sessions.find(&cookie).is_none());
    }
}
