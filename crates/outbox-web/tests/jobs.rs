//! Jobs: counted first, limited in number, with progress, and stoppable.

mod common;

use std::time::{Duration, Instant};

use common::TestServer;
use outbox::Event;
use serde_json::{Value, json};

async fn some_dead(server: &TestServer, event_type: &str, count: usize) {
    let event = |n| Event::new(event_type.to_owned()).json(&n).build().unwrap();
    server.store.insert(&(0..count).map(event).collect::<Vec<_>>()).await.unwrap();
    let by = outbox::store::Holder::Lease { owner: "test".into(), lease: Duration::from_secs(30) };
    let dead = |delivery: outbox::store::Delivery| outbox::store::Settlement {
        id: delivery.event.id().clone(),
        claim: delivery.claim,
        verdict: outbox::store::Verdict::Dead { counted: true, reason: "no".to_owned() },
    };
    let settlements: Vec<_> = server.take(&by).await.deliveries.into_iter().map(dead).collect();
    assert_eq!(settlements.len(), count);
    server.store.settle(&by, outbox::store::Completion::Keep, &settlements).await.unwrap();
}

async fn dead_left(server: &TestServer) -> Value {
    server.post("/api/outbox/dead/replay", json!({"dry_run": true})).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_counted_first_and_then_a_job() {
    for server in TestServer::on_all_databases().await {
        some_dead(&server, "order", 12).await;
        some_dead(&server, "bill", 3).await;
        assert_eq!(dead_left(&server).await, json!({"count": 15, "more": false}));
        let filter = json!({"event_type": "order", "within": "1h"});
        let dry = server.post("/api/outbox/dead/replay", json!({"filter": filter, "dry_run": true})).await;
        assert_eq!((dry.status.as_u16(), dry.json()), (200, json!({"count": 12, "more": false})));
        assert_eq!(dead_left(&server).await["count"], 15, "a dry run changes nothing");

        let started = server.post("/api/outbox/dead/replay", json!({"filter": filter})).await;
        assert_eq!(started.status, 202, "{}", started.text);
        let job = started.json();
        let id = job["id"].as_str().unwrap();
        assert_eq!(started.header("location"), format!("/api/outbox/jobs/{id}"));
        let ended = server.wait_for_job(id).await;
        assert_eq!(
            (&ended["state"], &ended["done"], &ended["total"]),
            (&json!("done"), &json!(12), &json!(12)),
            "{ended}"
        );
        assert_eq!(dead_left(&server).await["count"], 3);
        assert_eq!(server.audit().await[0], ("dead.replay".to_owned(), "done".to_owned()));
        let jobs = server.read("/api/outbox/jobs").await;
        assert_eq!(jobs["jobs"][0]["id"], id);
    }
}

#[tokio::test]
async fn replaying_every_event_needs_a_confirmation() {
    let server = TestServer::start().await;
    some_dead(&server, "order", 2).await;
    for body in [json!({}), json!({"filter": {}}), json!({"filter": {}, "confirm_all": false})] {
        let rejected = server.post("/api/outbox/dead/replay", body.clone()).await;
        assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (422, "not-confirmed"), "{body}");
    }
    // A misspelt filter must not match everything.
    assert_eq!(
        server.post("/api/outbox/dead/replay", json!({"filter": {"type": "order"}})).await.status,
        422
    );
    assert_eq!(
        server.post("/api/outbox/dead/replay", json!({"filter": {"event_type": ""}})).await.status,
        422
    );
    assert_eq!(dead_left(&server).await["count"], 2);
    let started = server.post("/api/outbox/dead/replay", json!({"confirm_all": true})).await;
    assert_eq!(server.wait_for_job(started.json()["id"].as_str().unwrap()).await["done"], 2);
}

#[tokio::test]
async fn a_replay_keeps_its_rate_and_can_be_stopped() {
    let server = TestServer::start().await;
    some_dead(&server, "order", 50).await;
    let began = Instant::now();
    let started =
        server.post("/api/outbox/dead/replay", json!({"confirm_all": true, "rate": 2})).await.json();
    let id = started["id"].as_str().unwrap().to_owned();
    assert_eq!((&started["rate"], &started["state"]), (&json!(2), &json!("running")));
    let two_done = async || {
        let job = server.read(&format!("/api/outbox/jobs/{id}")).await;
        if job["done"].as_u64().unwrap() >= 2 { Ok(()) } else { Err(job) }
    };
    common::poll("two events are replayed", two_done).await;
    assert!(began.elapsed() > Duration::from_millis(450), "one at a time, half a second apart");
    assert_eq!(server.post(&format!("/api/outbox/jobs/{id}/stop"), json!({})).await.status, 200);
    let ended = server.wait_for_job(&id).await;
    assert_eq!(ended["state"], "stopped", "{ended}");
    let done = ended["done"].as_u64().unwrap();
    assert!((2..50).contains(&done), "{ended}");
    assert_eq!(dead_left(&server).await["count"], 50 - done);
    assert_eq!(server.post(&format!("/api/outbox/jobs/{id}/stop"), json!({})).await.status, 409);
    let audit = server.audit().await;
    assert!(audit.contains(&("dead.replay".to_owned(), "stopped".to_owned())), "{audit:?}");
    assert!(audit.contains(&("job.stop".to_owned(), "done".to_owned())), "{audit:?}");
}

#[tokio::test]
async fn only_a_few_jobs_run_at_once() {
    let server = TestServer::start().await;
    some_dead(&server, "order", 1_000).await;
    let slow = json!({"confirm_all": true, "rate": 1});
    for _ in 0..4 {
        assert_eq!(server.post("/api/outbox/dead/replay", slow.clone()).await.status, 202);
    }
    let rejected = server.post("/api/outbox/dead/replay", slow).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (429, "too-many"));
    assert!(rejected.headers.contains_key("retry-after"));
}

/// Concurrent requests must not all acquire the same permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_do_not_exceed_the_job_limit() {
    let server = TestServer::start().await;
    some_dead(&server, "order", 1_000).await;
    let slow = json!({"confirm_all": true, "rate": 1});
    let requests = (0..60).map(|_| server.post("/api/outbox/dead/replay", slow.clone()));
    let responses = futures_util::future::join_all(requests).await;
    let count = |status: u16| responses.iter().filter(|response| response.status == status).count();
    assert_eq!((count(202), count(429)), (4, 56));
    let jobs = server.read("/api/outbox/jobs").await;
    let running = jobs["jobs"].as_array().unwrap().iter().filter(|job| job["state"] == "running");
    assert_eq!(running.count(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_counts_first_and_keeps_pending_events() {
    for server in TestServer::on_all_databases().await {
        some_dead(&server, "order", 3).await;
        let pending = server.write(Event::new("order").json(&1)).await;
        let purge = async |body: Value| server.post("/api/outbox/purge", body).await;
        let dry = purge(json!({"what": "finished", "older_than": "0s", "dry_run": true})).await;
        assert_eq!((dry.status.as_u16(), dry.json()), (200, json!({"count": 3, "more": false})));
        let none = purge(json!({"what": "done", "older_than": "0s", "dry_run": true})).await;
        assert_eq!(none.json(), json!({"count": 0, "more": false}));
        for (what, done) in
            [("done", 0), ("dead", 3), ("finished", 0), ("attempts", 3), ("inbox", 0), ("joins", 0)]
        {
            let started = purge(json!({"what": what, "older_than": "0s"})).await;
            assert_eq!(started.status, 202, "{what}: {}", started.text);
            let ended = server.wait_for_job(started.json()["id"].as_str().unwrap()).await;
            assert_eq!((&ended["state"], &ended["done"]), (&json!("done"), &json!(done)), "{what}: {ended}");
        }
        assert_eq!(server.status_of(&pending).await, "NEW");
        for wrong in [
            json!({"what": "everything", "older_than": "1d"}),
            json!({"what": "done"}),
            json!({"what": "done", "older_than": "1w"}),
        ] {
            assert_eq!(purge(wrong.clone()).await.status, 422, "{wrong}");
        }
    }
}
