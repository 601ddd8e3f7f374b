//! Several databases: every request names one.

mod common;

use common::{ADMIN, TestServer, with_tokens};
use outbox::{Event, Fleet, Outbox};
use outbox_web::Web;
use serde_json::json;
use sqlx::Sqlite;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_database_of_a_fleet_is_selected_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite:{}/{name}.db", folder.path().display());
    let fleet = Fleet::builder().database("acme", url("acme")).database("globex", url("globex"));
    let fleet = fleet.migrate(true).open().await.unwrap();
    let acme: Outbox<Sqlite> = fleet.outbox("acme").unwrap();
    let id = acme.send(Event::new("order").json(&1)).await.unwrap().id;
    let web = with_tokens(Web::builder().fleet(fleet.clone())).build().unwrap();
    let server = TestServer::serve(web, fleet.store("acme").unwrap(), Some(folder)).await;

    let unnamed = server.get("/api/outbox/overview").await;
    assert_eq!(unnamed.status, 400);
    assert!(unnamed.text.contains("acme") && unnamed.text.contains("globex"), "{}", unnamed.text);
    for (name, due) in [("acme", 1), ("globex", 0)] {
        let overview = server.read(&format!("/api/outbox/overview?database={name}")).await;
        assert_eq!(overview["due"]["count"], due, "{name}");
        let events = server.read(&format!("/api/outbox/events?database={name}")).await;
        assert_eq!(events["events"].as_array().unwrap().len(), due);
    }
    let elsewhere = server.post(&format!("/api/outbox/events/{id}/cancel?database=globex"), json!({})).await;
    assert_eq!(elsewhere.status, 404);
    assert_eq!(
        server.post(&format!("/api/outbox/events/{id}/cancel?database=acme"), json!({})).await.status,
        200
    );
    assert_eq!(server.read("/api/outbox/audit?database=acme").await["entries"].as_array().unwrap().len(), 1);
    assert_eq!(server.read("/api/outbox/audit?database=globex").await["entries"], json!([]));

    let names = server.read("/api/outbox/databases").await;
    assert_eq!(
        (&names["databases"][0]["name"], &names["databases"][1]["name"]),
        (&json!("acme"), &json!("globex"))
    );
    assert_eq!(server.read("/api/outbox/whoami").await["databases"], json!(["acme", "globex"]));
    let live =
        server.request("GET", "/api/outbox/live?database=globex").bearer_auth(ADMIN).send().await.unwrap();
    assert_eq!(live.status(), 200);

    // After the fleet is closed, its databases are gone.
    fleet.close().await;
    assert_eq!(server.get("/api/outbox/overview?database=acme").await.status, 404);
    assert_eq!(server.read("/api/outbox/databases").await["databases"], json!([]));
}
