//! The conformance suite on every database that is configured.

#[path = "common/harness.rs"]
mod harness;

mod sqlite_file {
    outbox::conformance_tests!(crate::harness::DatabaseHarness::sqlite_file().await);
}

mod sqlite_memory {
    outbox::conformance_tests!(crate::harness::DatabaseHarness::sqlite_memory().await);
}

#[cfg(feature = "postgres")]
mod postgres {
    outbox::conformance_tests!(crate::harness::DatabaseHarness::postgres().await);
}

#[cfg(feature = "mysql")]
mod mariadb {
    outbox::conformance_tests!(crate::harness::DatabaseHarness::mariadb().await);
}

#[cfg(feature = "mysql")]
mod mysql {
    outbox::conformance_tests!(crate::harness::DatabaseHarness::mysql().await);
}

/// Cases that are not in the suite, because they concern SQL stores only.
mod sql {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use outbox::store::{
        Completion, EXCLUSIVE, Filter, Holder, Origin, PageRequest, ProgressUpdate, Settlement, SharedStore,
        Take, Verdict,
    };
    use outbox::{
        Condition, DatabaseKind, Error, Event, GLOBAL, NodeId, OnDead, Position, Query, StoreOptions,
        SubscriptionId, SubscriptionStatus, migration_sql, migration_sql_from, open_store,
    };
    use sqlx::{Connection as _, SqliteConnection};

    use crate::harness::{Database, DatabaseHarness};

    crate::on_every_database!(
        scripts_make_the_same_tables,
        upgrade_scripts_make_the_tables_of_a_migration,
        an_upgrade_script_fails_on_tables_of_another_version,
        an_upgrade_starts_at_a_version_that_exists,
        names_are_checked
    );

    async fn works(store: &SharedStore) {
        let event = |n: u8| {
            let event = Event::new("n").json(&n).ordering_key("k").dedup_key(format!("d{n}"));
            event.build().unwrap()
        };
        store.check_schema().await.unwrap();
        assert_eq!(store.insert(&[event(1), event(2), event(2)]).await.unwrap().len(), 2);
        let by = Holder::Lease { owner: NodeId::from("a"), lease: Duration::from_secs(60) };
        let take = Take {
            by: by.clone(),
            from: Origin::Start,
            limit: 10,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            only: None,
            probe: None,
            destinations: Default::default(),
            held_up_to: Default::default(),
            group_lease: false,
            max_bytes: usize::MAX,
            by_aggregate: false,
        };
        let taken = store.take(&take).await.unwrap().deliveries;
        let done: Vec<_> = taken
            .iter()
            .map(|d| Settlement { id: d.event.id().clone(), claim: d.claim, verdict: Verdict::Done })
            .collect();
        assert_eq!(store.settle(&by, Completion::Keep, &done).await.unwrap().moved, 2);
        store.lead(EXCLUSIVE, &NodeId::from("a"), Duration::from_secs(1)).await.unwrap();
        assert_eq!(store.stats().await.unwrap().done, 2);
    }

    /// For users who run their own migrations: the script alone is enough.
    async fn scripts_make_the_same_tables(harness: DatabaseHarness) {
        let script = migration_sql(kind(&harness), &harness.options()).unwrap();
        harness.run(&script).await;
        let store = harness.store(harness.options()).await;
        works(&store).await;
        store.migrate().await.unwrap();
        assert_eq!(store.stats().await.unwrap().done, 2);
    }

    /// The tables as a build made them whose newest version was this one.
    fn tables_of(version: i64, kind: DatabaseKind, options: &StoreOptions, table: &str) -> String {
        let script = migration_sql(kind, options).unwrap();
        let end = script.find(&format!("-- version {}\n", version + 1)).unwrap();
        format!(
            "{}\nCREATE TABLE {table}_schema (version integer NOT NULL); INSERT INTO {table}_schema VALUES ({version});",
            &script[..end]
        )
    }

    fn newest_version(kind: DatabaseKind) -> i64 {
        let script = migration_sql(kind, &StoreOptions::default()).unwrap();
        script.lines().filter(|line| line.starts_with("-- version ")).count().try_into().unwrap()
    }

    async fn upgrade_scripts_make_the_tables_of_a_migration(harness: DatabaseHarness) {
        let kind = kind(&harness);
        let table = format!("{}_migrated", harness.table);
        harness.store(StoreOptions::default().table(&table)).await.migrate().await.unwrap();
        let migrated = catalog(&harness, &table).await;
        assert!(migrated.len() > 30, "{migrated:#?}");
        for version in 1..newest_version(kind) {
            let table = format!("{}_from{version}_", harness.table);
            let options = StoreOptions::default().table(&table);
            harness.run(&tables_of(version, kind, &options, &table)).await;
            let store = harness.store(options.clone()).await;
            let old = store.check_schema().await;
            assert!(matches!(old, Err(Error::SchemaTooOld { found, .. }) if found == version), "{old:?}");
            harness.run(&migration_sql_from(kind, &options, version).unwrap()).await;
            let upgraded = catalog(&harness, &table).await;
            let differences: Vec<&String> = migrated.symmetric_difference(&upgraded).collect();
            assert!(differences.is_empty(), "from version {version}: {differences:#?}");
            works(&store).await;
            let fact = Event::new("Fact").tag("from", version).json(&version).build().unwrap();
            let log = store.log().unwrap();
            assert_eq!(log.append(&[fact], &Condition::default()).await.unwrap().positions().len(), 1);
            let query = Query::tag("from", version);
            assert_eq!(log.read(&query, Position::START, None, 10).await.unwrap().len(), 1);
            store.migrate().await.unwrap();
            assert_eq!(catalog(&harness, &table).await, migrated, "up to date since the script");
        }
    }

    /// A script for a later version would leave out changes, and record that they were made.
    async fn an_upgrade_script_fails_on_tables_of_another_version(harness: DatabaseHarness) {
        let (kind, table, options) = (kind(&harness), &harness.table, harness.options());
        harness.run(&tables_of(6, kind, &options, table)).await;
        let store = harness.store(options.clone()).await;
        let before = catalog(&harness, table).await;
        for other in [5, 7] {
            let refused = run(&harness, &migration_sql_from(kind, &options, other).unwrap()).await;
            assert!(refused.is_err(), "from version {other}");
            let version = store.check_schema().await;
            assert!(matches!(version, Err(Error::SchemaTooOld { found: 6, .. })), "{version:?}");
            assert_eq!(catalog(&harness, table).await, before);
        }
        run(&harness, &migration_sql_from(kind, &options, 6).unwrap()).await.unwrap();
        store.check_schema().await.unwrap();
    }

    async fn an_upgrade_starts_at_a_version_that_exists(harness: DatabaseHarness) {
        let (kind, options) = (kind(&harness), harness.options());
        let newest = newest_version(kind);
        let script = |from| migration_sql_from(kind, &options, from);
        for unknown in [-1, newest + 1, i64::MAX, i64::MIN] {
            let refused = script(unknown);
            let Err(Error::UnknownSchemaVersion { version, newest: known }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!((version, known), (unknown, newest));
        }
        assert!(script(newest).unwrap().lines().all(|line| line.starts_with("--")));
        assert_eq!(script(0).unwrap(), migration_sql(kind, &options).unwrap());
    }

    /// Everything that the catalog of the database has of an outbox's tables, without the outbox's
    /// name and the numbers that depend on the name.
    async fn catalog(harness: &DatabaseHarness, table: &str) -> BTreeSet<String> {
        let queries: &[&str] = match kind(harness) {
            DatabaseKind::Sqlite => {
                &["SELECT type || ' ' || name || ' ' || COALESCE(sql, '') FROM sqlite_master \
                WHERE name LIKE '{t}%' OR tbl_name LIKE '{t}%'"]
            }
            #[cfg(feature = "postgres")]
            DatabaseKind::Postgres => &[
                "SELECT concat_ws(' ', c.table_name, c.ordinal_position, c.column_name, c.data_type, \
                 c.character_maximum_length, c.is_nullable, c.column_default, c.identity_generation) \
                 FROM information_schema.columns c WHERE c.table_name LIKE '{t}%'",
                "SELECT indexdef FROM pg_indexes WHERE tablename LIKE '{t}%'",
                "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint \
                 WHERE conrelid::regclass::text LIKE '{t}%'",
                "SELECT pg_get_triggerdef(oid) FROM pg_trigger \
                 WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE '{t}%'",
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE '{t}%'",
                "SELECT concat_ws(' ', oid::regclass, relkind, reloptions, relacl) FROM pg_class \
                 WHERE relname LIKE '{t}%'",
            ],
            #[cfg(feature = "mysql")]
            DatabaseKind::MySql => &[
                "SELECT CONCAT_WS(' ', c.table_name, c.ordinal_position, c.column_name, c.column_type, c.is_nullable, \
                 c.collation_name, c.column_default, c.extra) FROM information_schema.columns c \
                 WHERE c.table_schema = database() AND c.table_name LIKE '{t}%'",
                "SELECT CONCAT_WS(' ', s.table_name, s.index_name, s.seq_in_index, s.column_name, s.non_unique) \
                 FROM information_schema.statistics s WHERE s.table_schema = database() AND s.table_name LIKE '{t}%'",
                "SELECT CONCAT_WS(' ', c.constraint_name, c.check_clause) FROM information_schema.check_constraints c \
                 WHERE c.constraint_schema = database() AND \
                 /*M! c.table_name LIKE '{t}%' */ /*!80000 c.constraint_name LIKE '{t}%' */",
                "SELECT CONCAT_WS(' ', t.event_object_table, t.trigger_name, t.action_timing, t.action_statement) \
                 FROM information_schema.triggers t \
                 WHERE t.trigger_schema = database() AND t.event_object_table LIKE '{t}%'",
            ],
            other => panic!("{other:?}"),
        };
        let mut found = BTreeSet::new();
        for query in queries {
            let text = sqlx::AssertSqlSafe(query.replace("{t}", table));
            let rows: Vec<String> = match &harness.database {
                Database::SqliteFile { url, .. } => {
                    let mut conn = SqliteConnection::connect(url).await.unwrap();
                    sqlx::query_scalar(text).fetch_all(&mut conn).await.unwrap()
                }
                Database::SqliteMemory(pool) => sqlx::query_scalar(text).fetch_all(pool).await.unwrap(),
                #[cfg(feature = "postgres")]
                Database::Postgres(url) => {
                    let mut conn = sqlx::PgConnection::connect(url).await.unwrap();
                    sqlx::query_scalar(text).fetch_all(&mut conn).await.unwrap()
                }
                #[cfg(feature = "mysql")]
                Database::MySql(url) => {
                    let mut conn = sqlx::MySqlConnection::connect(url).await.unwrap();
                    sqlx::query_scalar(text).fetch_all(&mut conn).await.unwrap()
                }
            };
            found.extend(
                rows.into_iter().map(|row| without_numbers(&row.replace(table, "{t}").replace('"', ""))),
            );
        }
        found
    }

    /// Replaces numbers with many digits, such as keys of locks, which are hashes of names.
    fn without_numbers(text: &str) -> String {
        let mut kept = String::new();
        for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
            kept.push_str(if digits > 12 { "#" } else { &part[..digits] });
            kept.push_str(&part[digits..]);
        }
        kept.replace("-#", "#")
    }

    /// Runs a script as a client does that stops at the first error.
    async fn run(harness: &DatabaseHarness, sql: &str) -> Result<(), sqlx::Error> {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        match &harness.database {
            Database::SqliteFile { url, .. } => {
                let mut conn = SqliteConnection::connect(url).await?;
                sqlx::raw_sql(sql).execute(&mut conn).await?;
            }
            Database::SqliteMemory(pool) => _ = sqlx::raw_sql(sql).execute(pool).await?,
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => {
                let mut conn = sqlx::PgConnection::connect(url).await?;
                sqlx::raw_sql(sql).execute(&mut conn).await?;
            }
            #[cfg(feature = "mysql")]
            Database::MySql(url) => {
                let mut conn = sqlx::MySqlConnection::connect(url).await?;
                sqlx::raw_sql(sql).execute(&mut conn).await?;
            }
        }
        Ok(())
    }

    fn kind(harness: &DatabaseHarness) -> DatabaseKind {
        match &harness.database {
            #[cfg(feature = "postgres")]
            crate::harness::Database::Postgres(_) => DatabaseKind::Postgres,
            #[cfg(feature = "mysql")]
            crate::harness::Database::MySql(_) => DatabaseKind::MySql,
            _ => DatabaseKind::Sqlite,
        }
    }

    /// Names are checked before any statement is sent to the database.
    async fn names_are_checked(harness: DatabaseHarness) {
        let Some(url) = harness.url() else { return };
        for options in
            [StoreOptions::default().table("a; DROP TABLE b"), StoreOptions::default().schema("a\"b")]
        {
            let error = open_store(url, &options).await.unwrap_err();
            assert!(matches!(error, Error::Identifier { .. } | Error::Setting { .. }), "{error:?}");
        }
    }

    /// The statements exactly as documented, on tables with the default names.
    async fn verbatim(
        harness: Option<DatabaseHarness>,
        create_schema: &str,
        select_schema: &str,
        options: StoreOptions,
    ) {
        let Some(harness) = harness else { return };
        harness.run(create_schema).await;
        let store = harness.store(options).await;
        store.migrate().await.unwrap();
        let log = store.log().unwrap();
        let subscriptions = ["KafkaPublisher", "other"]
            .map(|publisher| (SubscriptionId::new("wallet-events", publisher), false));
        log.register(&subscriptions).await.unwrap();
        let node = NodeId::from("n");
        let led =
            log.claim(&node, Duration::from_secs(60), &[subscriptions[0].0.clone()]).await.unwrap().remove(0);
        let failed = ProgressUpdate {
            subscription: led.id,
            epoch: led.epoch,
            from: led.position,
            to: led.position,
            status: SubscriptionStatus::Failed,
            error_count: 5,
            last_error: Some("broker away".to_owned()),
        };
        assert_eq!(log.save(&node, &[failed]).await.unwrap().len(), 1);

        harness
            .run(&format!(
                "{select_schema}
            UPDATE outbox_topic_progress
            SET status = 'PAUSED'
            WHERE publisher = 'KafkaPublisher';"
            ))
            .await;
        let paused = log.subscriptions().await.unwrap();
        assert_eq!((paused[0].status, paused[0].error_count), (SubscriptionStatus::Paused, 5));
        harness
            .run(&format!(
                "{select_schema}
            UPDATE outbox_topic_progress
            SET status = 'ACTIVE', error_count = 0, last_error = NULL
            WHERE publisher = 'KafkaPublisher';"
            ))
            .await;
        for subscription in log.subscriptions().await.unwrap() {
            assert_eq!(
                (subscription.status, subscription.error_count, subscription.last_error),
                (SubscriptionStatus::Active, 0, None)
            );
        }
        log.leave(&node).await.unwrap();
    }

    #[tokio::test]
    async fn publishers_are_paused_and_reset_by_the_documented_sql_on_sqlite() {
        verbatim(DatabaseHarness::sqlite_file().await, "", "", StoreOptions::default()).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn publishers_are_paused_and_reset_by_the_documented_sql_on_postgres() {
        let schema = crate::harness::unique_table();
        let (create_schema, select_schema) =
            (format!("CREATE SCHEMA {schema}"), format!("SET search_path TO {schema};"));
        verbatim(
            DatabaseHarness::postgres().await,
            &create_schema,
            &select_schema,
            StoreOptions::default().schema(schema),
        )
        .await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn publishers_are_paused_and_reset_by_the_documented_sql_on_mariadb_and_mysql() {
        for harness in [DatabaseHarness::mariadb().await, DatabaseHarness::mysql().await] {
            let schema = crate::harness::unique_table();
            let (create_schema, select_schema) =
                (format!("CREATE SCHEMA {schema}"), format!("USE {schema};"));
            verbatim(harness, &create_schema, &select_schema, StoreOptions::default().schema(schema)).await;
        }
    }

    #[tokio::test]
    async fn sqlite_has_no_schemas() {
        let harness = DatabaseHarness::sqlite_file().await.unwrap();
        let error = open_store(harness.url().unwrap(), &harness.options().schema("app")).await.unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{error:?}");
    }

    /// Two stores with equal table names, in different schemas.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    async fn a_schema_of_its_own(harness: Option<DatabaseHarness>) {
        let Some(harness) = harness else { return };
        harness.run("CREATE SCHEMA IF NOT EXISTS outbox_app").await;
        let plain = harness.store(harness.options()).await;
        let apart = harness.store(harness.options().schema("outbox_app")).await;
        assert!(matches!(apart.check_schema().await, Err(Error::NotMigrated { .. })));
        for store in [&apart, &plain] {
            store.migrate().await.unwrap();
            store.migrate().await.unwrap();
            works(store).await;
        }
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn tables_may_live_in_a_schema_of_their_own_on_postgres() {
        a_schema_of_its_own(DatabaseHarness::postgres().await).await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn tables_may_live_in_a_schema_of_their_own_on_mariadb() {
        a_schema_of_its_own(DatabaseHarness::mariadb().await).await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn tables_may_live_in_a_schema_of_their_own_on_mysql() {
        a_schema_of_its_own(DatabaseHarness::mysql().await).await;
    }

    /// Text columns accept invalid JSON; PostgreSQL's column does not.
    #[tokio::test]
    async fn blank_headers_are_none_where_the_column_is_a_text() {
        let mut harnesses = vec![DatabaseHarness::sqlite_file().await];
        #[cfg(feature = "mysql")]
        harnesses.extend([DatabaseHarness::mariadb().await, DatabaseHarness::mysql().await]);
        for harness in harnesses.into_iter().flatten() {
            let store = harness.store(harness.options()).await;
            store.migrate().await.unwrap();
            for headers in ["", " ", "\t \n"] {
                let table = &harness.table;
                harness
                    .run(&format!(
                        "INSERT INTO {table} (event_type, payload, headers) VALUES ('x', '1', '{headers}')"
                    ))
                    .await;
            }
            let listed = store.list(&Default::default(), 10).await.unwrap();
            assert_eq!(listed.len(), 3);
            for stored in listed {
                assert!(stored.event.unwrap().headers().is_empty());
            }
        }
    }

    /// SQLite's column stays NOT NULL: SQLite could drop that only by copying the table.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    #[tokio::test]
    async fn null_is_the_global_aggregate() {
        let mut harnesses = Vec::new();
        #[cfg(feature = "postgres")]
        harnesses.push(DatabaseHarness::postgres().await);
        #[cfg(feature = "mysql")]
        harnesses.extend([DatabaseHarness::mariadb().await, DatabaseHarness::mysql().await]);
        for harness in harnesses.into_iter().flatten() {
            let store = harness.store(harness.options()).await;
            store.migrate().await.unwrap();
            for value in ["NULL", "'__GLOBAL__'", "'order'"] {
                let table = &harness.table;
                harness
                    .run(&format!(
                        "INSERT INTO {table} (event_type, payload, aggregate_type) VALUES ('x', '1', {value})"
                    ))
                    .await;
            }
            let global = Filter { aggregate_type: Some(GLOBAL.to_owned()), ..Filter::default() };
            let listed = store.list(&global, 10).await.unwrap();
            assert_eq!(listed.len(), 2, "the name finds NULL as well");
            for stored in &listed {
                assert_eq!(stored.event.as_ref().unwrap().aggregate_type(), GLOBAL);
            }
            let page = store.page(&PageRequest { filter: global, ..PageRequest::default() }).await.unwrap();
            assert_eq!(
                page.rows.iter().map(|row| row.aggregate_type.as_str()).collect::<Vec<_>>(),
                [GLOBAL; 2]
            );
        }
    }

    /// The tables on MySQL and MariaDB accept any text: JSON_VALID would refuse deeply nested JSON
    /// that is valid.
    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn a_payload_that_is_not_json_cannot_be_decoded() {
        for harness in
            [DatabaseHarness::mariadb().await, DatabaseHarness::mysql().await].into_iter().flatten()
        {
            let store = harness.store(harness.options()).await;
            store.migrate().await.unwrap();
            harness
                .run(&format!("INSERT INTO {} (event_type, payload) VALUES ('x', '{{')", harness.table))
                .await;
            let listed = store.list(&Default::default(), 10).await.unwrap();
            assert!(listed[0].event.as_ref().unwrap_err().reason.contains("JSON"));
        }
    }

    /// Columns and indexes of an outbox's tables, without the outbox's name.
    async fn schema(url: &str, table: &str) -> std::collections::BTreeSet<String> {
        let query = format!(
            "SELECT CONCAT_WS(' ', c.table_name, c.column_name, c.column_type, c.is_nullable, c.collation_name) \
             FROM information_schema.columns c WHERE c.table_schema = database() AND c.table_name LIKE '{table}%' \
             UNION ALL SELECT CONCAT_WS(' ', s.table_name, s.index_name, s.seq_in_index, s.column_name, s.non_unique) \
             FROM information_schema.statistics s WHERE s.table_schema = database() AND s.table_name LIKE '{table}%'"
        );
        use sqlx::Connection as _;
        let mut conn = sqlx::MySqlConnection::connect(url).await.unwrap();
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(&mut conn).await.unwrap();
        rows.into_iter().map(|row| row.replace(table, "")).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_tables_of_tidb_are_those_of_mysql_on_mariadb() {
        let Some(harness) = DatabaseHarness::mariadb().await else { return };
        let url = harness.url().unwrap();
        let tables = [format!("{}_a", harness.table), format!("{}_b", harness.table)];
        let plain = StoreOptions::default().table(&tables[0]);
        let tidb = StoreOptions::default().table(&tables[1]).assume_tidb();
        harness.store(plain).await.migrate().await.unwrap();
        harness.store(tidb).await.migrate().await.unwrap();
        let (plain, tidb) = (schema(url, &tables[0]).await, schema(url, &tables[1]).await);
        let differences: Vec<&String> = plain.symmetric_difference(&tidb).collect();
        assert_eq!(differences, ["_log_tag _log_tag_position 1 position 1"]);
    }
}

/// The tables for distributed databases, beside those of PostgreSQL.
#[cfg(feature = "postgres")]
mod distributed {
    use outbox::StoreOptions;
    use sqlx::Connection as _;

    use crate::harness::DatabaseHarness;

    /// Columns and indexes of an outbox's tables, with the name of the outbox left out.
    async fn schema(url: &str, table: &str) -> std::collections::BTreeSet<String> {
        let ask = format!(
            "SELECT concat_ws(' ', c.table_name, c.column_name, c.data_type, c.character_maximum_length, c.is_nullable) \
             FROM information_schema.columns c WHERE c.table_name LIKE '{table}%' \
             UNION ALL SELECT regexp_replace(i.indexdef, 'INDEX .* ON', 'INDEX ON') FROM pg_indexes i \
             WHERE i.tablename LIKE '{table}%'"
        );
        let mut conn = sqlx::PgConnection::connect(url).await.unwrap();
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(ask)).fetch_all(&mut conn).await.unwrap();
        rows.into_iter().map(|row| row.replace(table, "")).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_tables_of_distributed_databases_are_those_of_postgresql() {
        let Some(harness) = DatabaseHarness::postgres().await else { return };
        let url = harness.url().unwrap();
        let tables = [format!("{}_a", harness.table), format!("{}_b", harness.table)];
        let plain = StoreOptions::default().table(&tables[0]);
        let distributed = StoreOptions::default().table(&tables[1]).assume_distributed();
        harness.store(plain).await.migrate().await.unwrap();
        harness.store(distributed).await.migrate().await.unwrap();
        let (plain, distributed) = (schema(url, &tables[0]).await, schema(url, &tables[1]).await);
        let differences: Vec<&String> = plain.symmetric_difference(&distributed).collect();
        let expected = [
            "CREATE UNIQUE INDEX ON public._key_slot USING btree (slot)",
            "CREATE UNIQUE INDEX ON public._log_head USING btree (id)",
            "CREATE UNIQUE INDEX ON public._migration_lock USING btree (id)",
            "_claim_lock never boolean YES",
            "_key_slot last bigint NO",
            "_key_slot slot integer NO",
            "_log_head id integer NO",
            "_log_head position bigint NO",
            "_migration_lock id integer NO",
        ];
        assert_eq!(differences, expected);
    }
}
