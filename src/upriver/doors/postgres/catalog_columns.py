"""The columns of PostgreSQL's catalog tables, and its keywords, as far as clients ask for them."""

from upriver.doors.postgres.empty_tables import EMPTY_TABLES

_TABLE_STATISTICS = (
    "relid:oid schemaname relname seq_scan:oid seq_tup_read:oid idx_scan:oid idx_tup_fetch:oid n_tup_ins:oid "
    "n_tup_upd:oid n_tup_del:oid n_tup_hot_upd:oid n_live_tup:oid n_dead_tup:oid last_vacuum last_autovacuum "
    "last_analyze last_autoanalyze vacuum_count:oid autovacuum_count:oid analyze_count:oid autoanalyze_count:oid "
    "last_seq_scan last_idx_scan n_tup_newpage_upd:oid n_mod_since_analyze:oid n_ins_since_vacuum:oid"
)

COLUMNS = {
    "pg_namespace": "oid:oid nspname nspowner:oid nspacl:texts",
    "pg_class": "oid:oid relname relnamespace:oid reltype:oid reloftype:oid relowner:oid relam:oid relfilenode:oid "
    "reltablespace:oid relpages:int reltuples:real relallvisible:int reltoastrelid:oid relhasindex:bool "
    "relisshared:bool relpersistence relkind relnatts:int relchecks:int relhasrules:bool relhastriggers:bool "
    "relhassubclass:bool relrowsecurity:bool relforcerowsecurity:bool relispopulated:bool relreplident "
    "relispartition:bool relrewrite:oid relfrozenxid:oid relminmxid:oid relacl:texts reloptions:texts "
    "relpartbound relhasoids:bool",
    "pg_attribute": "attrelid:oid attname atttypid:oid attstattarget:int attlen:int attnum:int attndims:int "
    "attcacheoff:int atttypmod:int attbyval:bool attalign attstorage attcompression attnotnull:bool "
    "atthasdef:bool atthasmissing:bool attidentity attgenerated attisdropped:bool attislocal:bool attinhcount:int "
    "attcollation:oid attacl:texts attoptions:texts attfdwoptions:texts attmissingval",
    "pg_type": "oid:oid typname typnamespace:oid typowner:oid typlen:int typbyval:bool typtype typcategory "
    "typispreferred:bool typisdefined:bool typdelim typrelid:oid typsubscript typelem:oid typarray:oid typinput "
    "typoutput typreceive typsend typmodin typmodout typanalyze typalign typstorage typnotnull:bool "
    "typbasetype:oid typtypmod:int typndims:int typcollation:oid typdefaultbin typdefault typacl:texts",
    "pg_index": "indexrelid:oid indrelid:oid indnatts:int indnkeyatts:int indisunique:bool indnullsnotdistinct:bool "
    "indisprimary:bool indisexclusion:bool indimmediate:bool indisclustered:bool indisvalid:bool "
    "indcheckxmin:bool indisready:bool indislive:bool indisreplident:bool indkey:int2s indcollation:oids "
    "indclass:oids indoption:int2s indexprs indpred indexdef",
    "pg_database": "oid:oid datname datdba:oid encoding:int datlocprovider datistemplate:bool datallowconn:bool "
    "datconnlimit:int datfrozenxid:oid datminmxid:oid dattablespace:oid datcollate datctype daticulocale "
    "daticurules datlocale datcollversion dathasloginevt:bool datacl:texts",
    "pg_roles": "oid:oid rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool rolcanlogin:bool "
    "rolreplication:bool rolconnlimit:int rolpassword rolvaliduntil rolbypassrls:bool rolconfig:texts",
    "pg_am": "oid:oid amname amhandler:oid amtype",
    "pg_settings": "name setting unit category short_desc context vartype source min_val max_val enumvals:texts "
    "boot_val reset_val "
    "extra_desc sourcefile sourceline:int pending_restart:bool",
    "pg_show_all_settings": "name setting unit category short_desc extra_desc context vartype source min_val max_val "
    "enumvals:texts boot_val reset_val sourcefile sourceline:int pending_restart:bool",
    "pg_matviews": "schemaname matviewname matviewowner tablespace hasindexes:bool ispopulated:bool definition",
    "pg_indexes": "schemaname tablename indexname tablespace indexdef",
    "information_schema.schemata": "catalog_name schema_name schema_owner default_character_set_catalog "
    "default_character_set_schema default_character_set_name sql_path",
    "information_schema.tables": "table_catalog table_schema table_name table_type self_referencing_column_name "
    "is_insertable_into is_typed commit_action reference_generation user_defined_type_catalog "
    "user_defined_type_schema user_defined_type_name",
    "information_schema.views": "table_catalog table_schema table_name view_definition check_option is_updatable "
    "is_insertable_into is_trigger_updatable is_trigger_deletable is_trigger_insertable_into",
    "information_schema.columns": "table_catalog table_schema table_name column_name ordinal_position:int "
    "column_default is_nullable data_type character_maximum_length:int character_octet_length:int "
    "numeric_precision:int numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type "
    "character_set_name collation_name domain_name udt_catalog udt_schema udt_name is_identity "
    "identity_generation is_generated generation_expression is_updatable domain_catalog domain_schema "
    "scope_catalog scope_schema scope_name maximum_cardinality:int dtd_identifier identity_start "
    "identity_increment identity_maximum identity_minimum identity_cycle interval_precision:int "
    "character_set_catalog character_set_schema collation_catalog collation_schema "
    "is_self_referencing",
    "pg_user": "usename usesysid:oid usecreatedb:bool usesuper:bool userepl:bool usebypassrls:bool passwd valuntil "
    "useconfig:texts",
    "pg_get_keywords": "word catcode barelabel:bool catdesc baredesc",
    # Without rows:
    "pg_attrdef": "oid:oid adrelid:oid adnum:int adbin",
    "pg_auth_members": "roleid:oid member:oid grantor:oid admin_option:bool oid:oid inherit_option:bool "
    "set_option:bool",
    "pg_collation": "oid:oid collname collnamespace:oid collowner:oid collprovider collisdeterministic:bool "
    "collencoding:int collcollate collctype colliculocale collicurules colllocale collversion",
    "pg_constraint": "oid:oid conname connamespace:oid contype condeferrable:bool condeferred:bool "
    "convalidated:bool conrelid:oid contypid:oid conindid:oid conparentid:oid confrelid:oid confupdtype "
    "confdeltype confmatchtype conislocal:bool coninhcount:int connoinherit:bool conkey:ints confkey:ints conbin "
    "conpfeqop:ints conppeqop:ints conffeqop:ints confdelsetcols:ints conexclop:ints conperiod:bool",
    "pg_depend": "classid:oid objid:oid objsubid:int refclassid:oid refobjid:oid refobjsubid:int deptype",
    "pg_description": "objoid:oid classoid:oid objsubid:int description",
    "pg_enum": "oid:oid enumtypid:oid enumsortorder:real enumlabel",
    "pg_extension": "oid:oid extname extowner:oid extnamespace:oid extrelocatable:bool extversion extconfig:ints "
    "extcondition:texts",
    "pg_foreign_server": "oid:oid srvname srvowner:oid srvfdw:oid srvtype srvversion srvacl:texts srvoptions:texts",
    "pg_foreign_table": "ftrelid:oid ftserver:oid ftoptions:texts",
    "pg_inherits": "inhrelid:oid inhparent:oid inhseqno:int inhdetachpending:bool",
    "pg_language": "oid:oid lanname lanowner:oid lanispl:bool lanpltrusted:bool lanplcallfoid:oid laninline:oid "
    "lanvalidator:oid lanacl:texts",
    "pg_policy": "oid:oid polname polrelid:oid polcmd polpermissive:bool polroles:ints polqual polwithcheck",
    "pg_proc": "oid:oid proname pronamespace:oid proowner:oid prolang:oid prokind proretset:bool prorettype:oid "
    "proargtypes:oids proallargtypes:ints proargmodes:texts proargnames:texts pronargs:int prosrc provolatile "
    "proisstrict:bool prosecdef:bool proparallel proacl:texts proleakproof:bool provariadic:oid prosupport:oid "
    "pronargdefaults:int proargdefaults probin prosqlbody proconfig:texts procost:real prorows:real "
    "protrftypes:ints",
    "pg_publication": "oid:oid pubname pubowner:oid puballtables:bool pubinsert:bool pubupdate:bool pubdelete:bool "
    "pubtruncate:bool pubviaroot:bool",
    "pg_publication_namespace": "oid:oid pnpubid:oid pnnspid:oid",
    "pg_publication_rel": "oid:oid prpubid:oid prrelid:oid prqual prattrs:int2s",
    "pg_range": "rngtypid:oid rngsubtype:oid rngmultitypid:oid rngcollation:oid rngsubopc:oid rngcanonical:oid "
    "rngsubdiff:oid",
    "pg_rewrite": "oid:oid rulename ev_class:oid ev_type ev_enabled is_instead:bool ev_qual ev_action",
    "pg_sequence": "seqrelid:oid seqtypid:oid seqstart:int seqincrement:int seqmax:oid seqmin:oid seqcache:oid "
    "seqcycle:bool",
    "pg_shdescription": "objoid:oid classoid:oid description",
    "pg_statistic_ext": "oid:oid stxrelid:oid stxname stxnamespace:oid stxkeys:int2s stxkind:texts stxstattarget:int "
    "stxowner:oid stxexprs",
    "pg_stat_user_tables": _TABLE_STATISTICS,
    "pg_stat_all_tables": _TABLE_STATISTICS,
    "pg_tables": "schemaname tablename tableowner tablespace hasindexes:bool hasrules:bool hastriggers:bool "
    "rowsecurity:bool",
    "pg_tablespace": "oid:oid spcname spcowner:oid spcacl:texts spcoptions:texts",
    "pg_trigger": "oid:oid tgrelid:oid tgparentid:oid tgname tgfoid:oid tgtype:int tgenabled tgisinternal:bool "
    "tgconstrrelid:oid tgconstrindid:oid tgconstraint:oid tgdeferrable:bool tginitdeferred:bool tgnargs:int "
    "tgattr:int2s tgargs tgqual tgoldtable tgnewtable",
    "pg_views": "schemaname viewname viewowner definition",
    "information_schema.constraint_column_usage": "table_catalog table_schema table_name column_name "
    "constraint_catalog constraint_schema constraint_name",
    "information_schema.key_column_usage": "constraint_catalog constraint_schema constraint_name table_catalog "
    "table_schema table_name column_name ordinal_position:int position_in_unique_constraint:int",
    "information_schema.referential_constraints": "constraint_catalog constraint_schema constraint_name "
    "unique_constraint_catalog unique_constraint_schema unique_constraint_name match_option update_rule "
    "delete_rule",
    "information_schema.routines": "specific_catalog specific_schema specific_name routine_catalog routine_schema "
    "routine_name routine_type data_type type_udt_name routine_definition",
    "information_schema.table_constraints": "constraint_catalog constraint_schema constraint_name table_catalog "
    "table_schema table_name constraint_type is_deferrable initially_deferred enforced nulls_distinct",
    "pg_aggregate": "aggfnoid:oid aggkind aggnumdirectargs:int aggtransfn:oid aggfinalfn:oid aggsortop:oid "
    "aggtranstype:oid agginitval aggcombinefn:oid aggserialfn:oid aggdeserialfn:oid aggmtransfn:oid "
    "aggminvtransfn:oid aggmfinalfn:oid aggfinalextra:bool aggmfinalextra:bool aggfinalmodify aggmfinalmodify "
    "aggtransspace:int aggmtranstype:oid aggmtransspace:int aggminitval",
    "pg_amop": "oid:oid amopfamily:oid amoplefttype:oid amoprighttype:oid amopstrategy:int amoppurpose amopopr:oid "
    "amopmethod:oid amopsortfamily:oid",
    "pg_amproc": "oid:oid amprocfamily:oid amproclefttype:oid amprocrighttype:oid amprocnum:int amproc:oid",
    "pg_available_extensions": "name default_version installed_version comment",
    "pg_cast": "oid:oid castsource:oid casttarget:oid castfunc:oid castcontext castmethod",
    "pg_conversion": "oid:oid conname connamespace:oid conowner:oid conforencoding:int contoencoding:int "
    "conproc:oid condefault:bool",
    "pg_cursors": "name statement is_holdable:bool is_binary:bool is_scrollable:bool creation_time",
    "pg_db_role_setting": "setdatabase:oid setrole:oid setconfig:texts",
    "pg_default_acl": "oid:oid defaclrole:oid defaclnamespace:oid defaclobjtype defaclacl:texts",
    "pg_event_trigger": "oid:oid evtname evtevent evtowner:oid evtfoid:oid evtenabled evttags:texts",
    "pg_foreign_data_wrapper": "oid:oid fdwname fdwowner:oid fdwhandler:oid fdwvalidator:oid fdwacl:texts "
    "fdwoptions:texts",
    "pg_group": "groname grosysid:oid grolist:ints",
    "pg_init_privs": "objoid:oid classoid:oid objsubid:int privtype initprivs:texts",
    "pg_largeobject_metadata": "oid:oid lomowner:oid lomacl:texts",
    "pg_locks": "locktype database:oid relation:oid page:int tuple:int virtualxid transactionid:oid classid:oid "
    "objid:oid objsubid:int virtualtransaction pid:int mode granted:bool fastpath:bool "
    "waitstart",
    "pg_opclass": "oid:oid opcmethod:oid opcname opcnamespace:oid opcowner:oid opcfamily:oid opcintype:oid "
    "opcdefault:bool opckeytype:oid",
    "pg_operator": "oid:oid oprname oprnamespace:oid oprowner:oid oprkind oprcanmerge:bool oprcanhash:bool "
    "oprleft:oid oprright:oid oprresult:oid oprcom:oid oprnegate:oid oprcode:oid oprrest:oid oprjoin:oid",
    "pg_opfamily": "oid:oid opfmethod:oid opfname opfnamespace:oid opfowner:oid",
    "pg_parameter_acl": "oid:oid parname paracl:texts",
    "pg_partitioned_table": "partrelid:oid partstrat partnatts:int partdefid:oid partattrs:int2s partclass:oids "
    "partcollation:oids partexprs",
    "pg_prepared_statements": "name statement prepare_time parameter_types:texts from_sql:bool "
    "result_types:texts generic_plans:oid custom_plans:oid",
    "pg_prepared_xacts": "transaction:oid gid prepared owner database",
    "pg_publication_tables": "pubname schemaname tablename attnames:texts rowfilter",
    "pg_replication_slots": "slot_name plugin slot_type datoid:oid database temporary:bool active:bool active_pid:int "
    "catalog_xmin:oid restart_lsn confirmed_flush_lsn wal_status safe_wal_size:oid two_phase:bool inactive_since "
    "conflicting:bool invalidation_reason failover:bool synced:bool",
    "pg_rules": "schemaname tablename rulename definition",
    "pg_seclabels": "objoid:oid classoid:oid objsubid:int objtype objnamespace:oid objname provider label",
    "pg_sequences": "schemaname sequencename sequenceowner data_type start_value:int min_value:int max_value:int "
    "increment_by:int cycle:bool cache_size:int last_value:int",
    "pg_shdepend": "dbid:oid classid:oid objid:oid objsubid:int refclassid:oid refobjid:oid deptype",
    "pg_stat_activity": "datid:oid datname pid:int leader_pid:int usesysid:oid usename application_name client_addr "
    "client_hostname client_port:int backend_start xact_start query_start state_change wait_event_type wait_event "
    "state backend_xid:oid backend_xmin:oid query_id:oid query backend_type",
    "pg_stat_database": "datid:oid datname numbackends:int xact_commit:oid xact_rollback:oid blks_read:oid "
    "blks_hit:oid tup_returned:oid tup_fetched:oid tup_inserted:oid tup_updated:oid tup_deleted:oid conflicts:oid "
    "temp_files:oid temp_bytes:oid deadlocks:oid stats_reset "
    "checksum_failures:oid checksum_last_failure blk_read_time:real blk_write_time:real session_time:real "
    "active_time:real idle_in_transaction_time:real sessions:oid sessions_abandoned:oid sessions_fatal:oid "
    "sessions_killed:oid",
    "pg_stat_replication": "pid:int usesysid:oid usename application_name client_addr state sync_state "
    "client_hostname client_port:int backend_start backend_xmin:oid sent_lsn write_lsn flush_lsn replay_lsn "
    "write_lag flush_lag replay_lag sync_priority:int reply_time",
    "pg_stat_ssl": "pid:int ssl:bool version cipher bits:int client_dn client_serial issuer_dn",
    "pg_stat_user_indexes": "relid:oid indexrelid:oid schemaname relname indexrelname idx_scan:oid idx_tup_read:oid "
    "idx_tup_fetch:oid "
    "last_idx_scan",
    "pg_stats": "schemaname tablename attname inherited:bool null_frac:real avg_width:int n_distinct:real "
    "most_common_vals:texts most_common_freqs:texts histogram_bounds:texts correlation:real most_common_elems:texts "
    "most_common_elem_freqs:texts elem_count_histogram:texts range_length_histogram:texts range_empty_frac:real "
    "range_bounds_histogram:texts",
    "pg_subscription": "oid:oid subdbid:oid subskiplsn subname subowner:oid subenabled:bool subbinary:bool "
    "substream:bool subtwophasestate subdisableonerr:bool subconninfo subslotname subsynccommit "
    "subpublications:texts subpasswordrequired:bool subrunasowner:bool subfailover:bool suborigin",
    "pg_timezone_names": "name abbrev utc_offset is_dst:bool",
    "pg_transform": "oid:oid trftype:oid trflang:oid trffromsql:oid trftosql:oid",
    "pg_ts_config": "oid:oid cfgname cfgnamespace:oid cfgowner:oid cfgparser:oid",
    "pg_ts_dict": "oid:oid dictname dictnamespace:oid dictowner:oid dicttemplate:oid dictinitoption",
    "pg_ts_parser": "oid:oid prsname prsnamespace:oid prsstart:oid prstoken:oid prsend:oid prsheadline:oid "
    "prslextype:oid",
    "pg_ts_template": "oid:oid tmplname tmplnamespace:oid tmplinit:oid tmpllexize:oid",
    "pg_user_mapping": "oid:oid umuser:oid umserver:oid umoptions:texts",
    "pg_user_mappings": "umid:oid srvid:oid srvname umuser:oid usename umoptions:texts",
    "aclexplode": "grantor:oid grantee:oid privilege_type is_grantable:bool",
    "pg_options_to_table": "option_name option_value",
    "information_schema.character_sets": "character_set_catalog character_set_schema character_set_name form_of_use "
    "character_repertoire default_collate_catalog default_collate_schema default_collate_name",
    "information_schema.check_constraints": "constraint_catalog constraint_schema constraint_name check_clause",
    "information_schema.column_privileges": "grantor grantee table_catalog table_schema table_name column_name "
    "privilege_type is_grantable",
    "information_schema.domains": "domain_catalog domain_schema domain_name data_type domain_default udt_name "
    "character_maximum_length:int character_octet_length:int character_set_catalog character_set_schema "
    "character_set_name collation_catalog collation_schema collation_name numeric_precision:int "
    "numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type interval_precision:int "
    "udt_catalog udt_schema scope_catalog scope_schema scope_name maximum_cardinality:int dtd_identifier",
    "information_schema.enabled_roles": "role_name",
    "information_schema.parameters": "specific_catalog specific_schema specific_name ordinal_position:int "
    "parameter_mode parameter_name data_type udt_name",
    "information_schema.role_table_grants": "grantor grantee table_catalog table_schema table_name privilege_type "
    "is_grantable "
    "with_hierarchy",
    "information_schema.sequences": "sequence_catalog sequence_schema sequence_name data_type start_value "
    "minimum_value maximum_value increment cycle_option "
    "numeric_precision:int numeric_precision_radix:int numeric_scale:int",
    "information_schema.table_privileges": "grantor grantee table_catalog table_schema table_name privilege_type "
    "is_grantable "
    "with_hierarchy",
    "information_schema.triggers": "trigger_catalog trigger_schema trigger_name event_manipulation "
    "event_object_catalog event_object_schema event_object_table action_order:int action_condition "
    "action_statement action_orientation action_timing "
    "action_reference_old_table action_reference_new_table action_reference_old_row action_reference_new_row created",
    "pg_authid": "oid:oid rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool "
    "rolcanlogin:bool rolreplication:bool rolbypassrls:bool rolconnlimit:int rolpassword rolvaliduntil",
    "pg_seclabel": "objoid:oid classoid:oid objsubid:int provider label",
    "pg_shseclabel": "objoid:oid classoid:oid provider label",
    "pg_subscription_rel": "srsubid:oid srrelid:oid srsubstate srsublsn",
    "pg_ts_config_map": "mapcfg:oid maptokentype:int mapseqno:int mapdict:oid",
    **EMPTY_TABLES,
}
"""Names and types of the columns of each table, and of each function that FROM may have; a column without a type is
text."""

RESERVED = (
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create "
    "current_catalog current_date current_role current_time current_timestamp current_user default deferrable "
    "desc distinct do else end except false fetch for foreign from grant group having in initially intersect into "
    "lateral leading limit localtime localtimestamp not null offset on only or order placing primary references "
    "returning select session_user some symmetric table then to trailing true union unique user using variadic "
    "when where window with"
)
"""PostgreSQL's reserved words."""
RESERVED_BUT_FUNCTIONS = (
    "authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left "
    "like natural notnull outer overlaps right similar tablesample verbose"
)
"""Words that may name functions and types only."""
COLUMN_NAMES = (
    "between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout "
    "int integer interval least national nchar none normalize nullif numeric out overlay position precision real "
    "row setof smallint substring time timestamp treat trim values varchar xmlattributes xmlconcat xmlelement "
    "xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable"
)
"""Words that may not name functions and types."""
