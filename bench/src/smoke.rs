//! Smoke test: runs a few events through some scenarios on the tests' server.
//! `OUTBOX_BENCH_SCENARIOS` names other scenarios than the default ones; `relay` needs the command
//! at `OUTBOX_BENCH_RELAY`.

use std::path::PathBuf;

use crate::environment::{Environment, Scale};
use crate::{facts, report, scenario};

#[tokio::test]
async fn scenarios_produce_figures_and_a_report() {
    let Ok(database) = std::env::var("OUTBOX_TEST_POSTGRES") else {
        assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "OUTBOX_TEST_POSTGRES is not set");
        eprintln!("left out: OUTBOX_TEST_POSTGRES is not set");
        return;
    };
    let relay = std::env::var_os("OUTBOX_BENCH_RELAY").map(PathBuf::from).unwrap_or_default();
    let env = Environment { database, rounds: 1, scale: Scale::Tiny, relay, peers: None };
    let named = std::env::var("OUTBOX_BENCH_SCENARIOS").unwrap_or_else(|_| "cold,nodes,hot".to_owned());
    let mut sheets = Vec::new();
    for name in named.split(',') {
        let scenario = scenario::named(&[name.to_owned()]).unwrap()[0];
        let sheet = scenario::run(scenario, &env).await;
        assert!(!sheet.failed, "{name}: {:?}", sheet.notes);
        let series = sheet.parts.iter().flat_map(|part| &part.cases).flat_map(|case| &case.series);
        for series in series {
            let found = series.spread().unwrap_or_else(|| panic!("{name}: nothing of {}", series.who));
            assert!(found.median.is_finite(), "{name}: {} has {found:?}", series.who);
        }
        assert!(!sheet.parts.is_empty(), "{name} found nothing");
        sheets.push(sheet);
    }
    let folder = tempfile::tempdir().unwrap();
    report::write(folder.path(), &facts::read(&env).await.unwrap(), &sheets).unwrap();
    let results = std::fs::read_to_string(folder.path().join("RESULTS.md")).unwrap();
    for chart in results.split("](charts/").skip(1) {
        let chart = chart.split(')').next().unwrap();
        let drawn = std::fs::read_to_string(folder.path().join("charts").join(chart)).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{chart}");
    }
    assert!(results.contains("`fsync` = "), "{results}");
}

#[test]
fn scenarios_are_found_by_name() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let found = scenario::named(&names(&["hot", "cold"])).unwrap();
    assert_eq!(found.iter().map(|scenario| scenario.name()).collect::<Vec<_>>(), ["hot", "cold"]);
    let error = scenario::named(&names(&["warm"])).err().unwrap().to_string();
    assert!(error.contains("`warm`") && error.contains("cold"), "{error}");
    assert!(scenario::named(&[]).unwrap().iter().all(|scenario| !scenario.any_database()));
}
