"""Leaves in Spark's plans: which leaves an action reads, other plans in their place, and a plan's text.

A small Java class does this inside the JVM.

Spark plans a DataFrame object once, and keeps for its further actions what the first one has shuffled and broadcast,
or why it has failed. An action on a table that grows, or on an app that has begun meanwhile, would then give an old
answer, or an old error. So after each action the class gives the DataFrame's query the parts of one that has not been
planned. If this Spark does not let it, the query stays *pinned*: its further actions read the epoch of the first one
(``docs/internals/decisions/0016-a-leaf-asks-in-its-tasks.md``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from upriver.ids import Epoch
from upriver.spark.session import compiled_class, java_class
from upriver.sql.leaves import LEAF_PREFIX


def leaf_name(app: str, name: str) -> str:
    """The name of the function of a leaf. app: the app's identity. name: of its table or view."""
    return f"{LEAF_PREFIX}{app}:{name}"


@dataclass(frozen=True, slots=True)
class OtherRows:
    """What a DataFrame reads that is no leaf of an app. place: the file and line in Python of an expression above it;
    empty if there is none. kind: the class of Spark's node, or the name of another leaf. shown: the node in Spark's
    words."""

    place: str
    kind: str
    shown: str

    @property
    def words(self) -> str:
        """What it reads, for a message."""
        if self.kind.startswith(LEAF_PREFIX):
            return f"it reads {self.kind.rpartition(':')[2]!r} of another app"
        if self.kind in _OWN_ROWS:
            return f"it has rows of its own ({self.kind})"
        if self.kind.startswith("Streaming"):
            return "it reads a stream"
        return f"it reads {self.shown[:SHOWN_CHARS_MAX]}"


SHOWN_CHARS_MAX = 80
"""Characters of a node of a plan that a message shows."""
_OWN_ROWS = frozenset({"LocalRelation", "LogicalRDD", "Range"})


class LeafPlans:
    """What can be asked of the plans of one session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context = spark.sparkContext
        self._gateway: Any = context._gateway
        methods = compiled_class(spark, "LeafPlans", _SOURCE).getDeclaredMethods()
        self._methods = {method.getName(): method for method in methods}
        self._call("listen", context._jsc.sc())

    def names_of(self, frame: DataFrame, app: str) -> tuple[str, ...]:
        """The tables and views of an app that a DataFrame reads, each once, by name."""
        return self._names(self._call("leavesOf", frame._jdf.queryExecution().analyzed()), app)

    def schemas_of(self, frame: DataFrame, app: str) -> list[tuple[str, str]]:
        """The same with the columns that the leaf has, as Spark writes a schema in JSON."""
        found = self._call("schemasOf", frame._jdf.queryExecution().analyzed(), leaf_name(app, ""))
        return [(str(name), str(columns)) for name, columns in found]

    def others(self, frame: DataFrame, app: str) -> list[OtherRows]:
        """What a DataFrame reads that is no leaf of the app."""
        found = self._call("others", frame._jdf.queryExecution().analyzed(), leaf_name(app, ""))
        return [OtherRows(*map(str, one)) for one in found]

    def names_read(self, execution: int, app: str) -> tuple[str, ...] | None:
        """The tables and views of an app that an action reads which is under way; ``None`` if Spark does not know the
        action. execution: Spark's id of it."""
        found = self._call("leaves", execution)
        return None if found is None else self._names(found, app)

    def pinned(self, execution: int, app: str) -> Epoch | None:
        """The epoch that an action must read, since it goes on from parts that an earlier action has read."""
        found = self._call("pinned", execution, app)
        return None if found is None else Epoch(int(found))

    def pin(self, execution: int, app: str, epoch: Epoch | None) -> None:
        """Note the epoch that an action reads; ``None``: it fails. Its query is planned anew afterwards."""
        self._call("pin", execution, app, None if epoch is None else str(epoch))

    def rewritten(
        self, spark: SparkSession, frame: DataFrame, frames: Mapping[str, DataFrame], micros: int | None = None
    ) -> DataFrame:
        """A DataFrame of a session with others in place of its leaves. frames: by the name of the leaf's function, each
        with the leaf's columns. micros: since 1970, in place of the clock."""
        given = java_class(self._spark, "java.util.HashMap")()
        for name, other in frames.items():
            given.put(name, other._jdf.queryExecution().analyzed())
        plan = self._call("rewritten", frame._jdf.queryExecution().analyzed(), given, micros)
        return frame_of(spark, plan)

    def words(self, frame: DataFrame) -> str:
        """The plan of a DataFrame as Spark writes it, whole, with numbers of columns that differ each time."""
        return str(self._call("words", frame._jdf.queryExecution().analyzed()))

    def _names(self, found: str, app: str) -> tuple[str, ...]:
        own = leaf_name(app, "")
        return tuple(sorted(name.removeprefix(own) for name in found.split("\n") if name.startswith(own)))

    def _call(self, method: str, *operands: Any) -> Any:
        given = self._gateway.new_array(java_class(self._spark, "java.lang.Object"), len(operands))
        for place, operand in enumerate(operands):
            given[place] = operand
        return self._methods[method].invoke(None, given)


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """The DataFrame of a session with this analysed plan."""
    datasets = java_class(spark, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """The numbers from 0 on, each in a partition of its own, of a size that Spark does not know: what is made of them
    may be large, and is not to be broadcast for the smallness of the numbers."""
    numbers = spark.range(0, count, 1, max(1, count))
    rows, schema = numbers._jdf.queryExecution().toRdd(), numbers._jdf.schema()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, schema, False), spark)


_SOURCE = r"""
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CurrentDate;
import org.apache.spark.sql.catalyst.expressions.CurrentTimestampLike;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.LocalTimestamp;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.util.DateTimeUtils$;
import org.apache.spark.sql.execution.CommandExecutionMode$;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.types.DateType$;
import org.apache.spark.sql.types.TimestampNTZType$;
import org.apache.spark.sql.types.TimestampType$;

public class LeafPlans {
  private static final HashSet PLANNED = new HashSet(java.util.Arrays.asList(new String[] {
    "lazyTableVersionsRefreshed", "lazyNormalized", "lazyWithCachedData", "lazyOptimizedPlan", "lazySparkPlan",
    "lazyExecutedPlan", "lazyToRdd"}));
  private static final HashSet CONNECTED = new HashSet(java.util.Arrays.asList(new String[] {
    "CTERelationRef", "UnionLoopRef", "OneRowRelation"}));
  private static final ArrayList PINS = new ArrayList();
  private static final ArrayList CONTEXTS = new ArrayList();

  public static synchronized void listen(SparkContext context) {
    for (int i = CONTEXTS.size() - 1; i >= 0; i--) {
      Object known = ((WeakReference) CONTEXTS.get(i)).get();
      if (known == context) return;
      if (known == null) CONTEXTS.remove(i);
    }
    CONTEXTS.add(new WeakReference(context));
    context.addSparkListener(new Ends());
  }

  public static String leaves(Object execution) {
    QueryExecution query = query(execution);
    return query == null ? null : leavesOf(query.analyzed());
  }

  public static String leavesOf(Object plan) {
    Names names = new Names();
    ((LogicalPlan) plan).foreachWithSubqueries(names);
    return String.join("\n", names.found);
  }

  public static ArrayList schemasOf(Object plan, String own) {
    Schemas schemas = new Schemas(own);
    ((LogicalPlan) plan).foreachWithSubqueries(schemas);
    return schemas.found;
  }

  public static ArrayList others(Object plan, String own) {
    ArrayList found = new ArrayList();
    addOthers((LogicalPlan) plan, own, "", found);
    return found;
  }

  private static void addOthers(LogicalPlan plan, String own, String above, ArrayList found) {
    String place = place(plan);
    if (place.length() == 0) place = above;
    String leaf = leafName(plan);
    boolean isOwn = leaf != null && leaf.startsWith(own);
    boolean isOther = leaf == null && plan.children().isEmpty() && !CONNECTED.contains(plan.getClass().getSimpleName());
    if (isOther || (leaf != null && !isOwn))
      found.add(new String[] {place, leaf == null ? plan.getClass().getSimpleName() : leaf, plan.simpleString(5)});
    if (leaf != null) return;
    scala.collection.Iterator below = plan.children().iterator();
    while (below.hasNext()) addOthers((LogicalPlan) below.next(), own, place, found);
    scala.collection.Iterator inside = plan.subqueries().iterator();
    while (inside.hasNext()) addOthers((LogicalPlan) inside.next(), own, place, found);
  }

  private static String place(LogicalPlan plan) {
    Places places = new Places();
    scala.collection.Iterator expressions = plan.expressions().iterator();
    while (expressions.hasNext()) ((Expression) expressions.next()).foreach(places);
    return places.found;
  }

  public static synchronized String pinned(Object execution, String app) {
    Iterator holders = holders(query(execution)).iterator();
    while (holders.hasNext()) {
      Map known = pins(holders.next(), false);
      if (known != null && known.get(app) != null) return (String) known.get(app);
    }
    return null;
  }

  public static synchronized void pin(Object execution, String app, String epoch) {
    Iterator holders = holders(query(execution)).iterator();
    while (holders.hasNext()) pins(holders.next(), true).put(app, epoch);
  }

  public static LogicalPlan rewritten(Object plan, Map given, Object micros) {
    LogicalPlan found = (LogicalPlan) ((LogicalPlan) plan).transformUpWithSubqueries(new Others(given));
    if (micros == null) return found;
    return (LogicalPlan) found.transformAllExpressionsWithSubqueries(new Clock(((Number) micros).longValue()));
  }

  public static String words(Object plan) throws Exception {
    java.lang.reflect.Method[] methods = plan.getClass().getMethods();
    for (int i = 0; i < methods.length; i++) {
      Class[] types = methods[i].getParameterTypes();
      if (!methods[i].getName().equals("treeString") || types.length < 4 || types[0] != boolean.class) continue;
      Object[] operands = new Object[types.length];
      for (int j = 0; j < types.length; j++) operands[j] = Boolean.valueOf(j == 0);
      operands[2] = Integer.valueOf(Integer.MAX_VALUE);
      return (String) methods[i].invoke(plan, operands);
    }
    return plan.toString();
  }

  private static QueryExecution query(Object execution) {
    return execution == null ? null : SQLExecution.getQueryExecution(((Number) execution).longValue());
  }

  private static ArrayList holders(QueryExecution query) {
    ArrayList found = new ArrayList();
    if (query == null) return found;
    found.add(query);
    scala.collection.Iterator leaves = query.withCachedData().collectLeaves().iterator();
    while (leaves.hasNext()) {
      Object leaf = leaves.next();
      if (leaf instanceof InMemoryRelation) found.add(((InMemoryRelation) leaf).cacheBuilder());
    }
    return found;
  }

  private static Map pins(Object holder, boolean makes) {
    for (int i = PINS.size() - 1; i >= 0; i--) {
      Object[] pair = (Object[]) PINS.get(i);
      Object known = ((WeakReference) pair[0]).get();
      if (known == holder) return (Map) pair[1];
      if (known == null) PINS.remove(i);
    }
    if (!makes) return null;
    Map made = new HashMap();
    PINS.add(new Object[] {new WeakReference(holder), made});
    return made;
  }

  private static synchronized void ended(long execution, QueryExecution query) throws Exception {
    if (pins(query, false) == null || !query.getClass().equals(QueryExecution.class)) return; // a stream's is its own
    if (query.analyzed() instanceof Command || isObserved(query.analyzed())) return;
    QueryExecution fresh =
      query.sparkSession().sessionState().executePlan(query.analyzed(), CommandExecutionMode$.MODULE$.ALL());
    boolean isPlannedAnew = false;
    java.lang.reflect.Field[] fields = QueryExecution.class.getDeclaredFields();
    for (int i = 0; i < fields.length; i++) {
      if (!PLANNED.contains(fields[i].getName())) continue;
      fields[i].setAccessible(true);
      fields[i].set(query, fields[i].get(fresh));
      isPlannedAnew |= fields[i].getName().equals("lazyExecutedPlan");
    }
    if (!isPlannedAnew || isRunning(execution, query)) return;
    for (int i = PINS.size() - 1; i >= 0; i--)
      if (((WeakReference) ((Object[]) PINS.get(i))[0]).get() == query) PINS.remove(i);
  }

  private static boolean isObserved(LogicalPlan plan) {
    if (plan.getClass().getSimpleName().equals("CollectMetrics")) return true;
    scala.collection.Iterator below = plan.children().iterator();
    while (below.hasNext()) if (isObserved((LogicalPlan) below.next())) return true;
    return false;
  }

  private static boolean isRunning(long execution, QueryExecution query) throws Exception {
    java.lang.reflect.Field field = SQLExecution.class.getClassLoader()
      .loadClass("org.apache.spark.sql.execution.SQLExecution$").getDeclaredField("executionIdToQueryExecution");
    field.setAccessible(true);
    Iterator running = ((Map) field.get(null)).entrySet().iterator();
    while (running.hasNext()) {
      Map.Entry entry = (Map.Entry) running.next();
      if (entry.getValue() == query && ((Number) entry.getKey()).longValue() != execution) return true;
    }
    return false;
  }

  static String leafName(Object node) {
    String kind = node.getClass().getSimpleName();
    if (!kind.equals("MapInArrow") && !kind.equals("PythonMapInArrow")) return null;
    scala.collection.Iterator expressions = ((LogicalPlan) node).expressions().iterator();
    while (expressions.hasNext()) {
      Object one = expressions.next();
      if (one instanceof PythonUDF && ((PythonUDF) one).name().startsWith("LEAF_PREFIX"))
        return ((PythonUDF) one).name();
    }
    return null;
  }

  public static class Ends extends SparkListener {
    public void onOtherEvent(SparkListenerEvent event) {
      if (!(event instanceof SparkListenerSQLExecutionEnd)) return;
      SparkListenerSQLExecutionEnd end = (SparkListenerSQLExecutionEnd) event;
      try {
        if (end.qe() != null) ended(end.executionId(), end.qe());
      } catch (Throwable stays) {} // pinned
    }
  }

  public static class Names extends scala.runtime.AbstractFunction1 {
    final java.util.TreeSet found = new java.util.TreeSet();

    public Object apply(Object node) {
      String name = leafName(node);
      if (name != null) found.add(name);
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  public static class Schemas extends scala.runtime.AbstractFunction1 {
    final ArrayList found = new ArrayList();
    private final String own;

    Schemas(String own) { this.own = own; }

    public Object apply(Object node) {
      String name = leafName(node);
      if (name != null && name.startsWith(own))
        found.add(new String[] {name.substring(own.length()), ((LogicalPlan) node).schema().json()});
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  public static class Places extends scala.runtime.AbstractFunction1 {
    String found = "";

    public Object apply(Object node) {
      scala.Option context = ((Expression) node).origin().pysparkErrorContext();
      if (found.length() == 0 && context.isDefined()) found = (String) ((scala.Tuple2) context.get())._2();
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  public static class Others extends scala.runtime.AbstractPartialFunction {
    private final Map given;

    Others(Map given) { this.given = given; }

    public boolean isDefinedAt(Object node) {
      String name = leafName(node);
      return name != null && given.containsKey(name);
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      LogicalPlan other = (LogicalPlan) given.get(leafName(node));
      scala.collection.Iterator wanted = ((LogicalPlan) node).output().iterator();
      scala.collection.Iterator made = other.output().iterator();
      ArrayList named = new ArrayList();
      while (wanted.hasNext()) {
        Attribute one = (Attribute) wanted.next();
        scala.collection.immutable.Seq none = (scala.collection.immutable.Seq) scala.collection.immutable.Nil$.MODULE$;
        named.add(new Alias(
          (Attribute) made.next(), one.name(), one.exprId(), one.qualifier(), scala.Option.apply(null), none));
      }
      scala.collection.immutable.Seq listed = scala.jdk.javaapi.CollectionConverters.asScala(named).toSeq();
      return new Project(listed, other);
    }
  }

  public static class Clock extends scala.runtime.AbstractPartialFunction {
    private final long micros;

    Clock(long micros) { this.micros = micros; }

    public boolean isDefinedAt(Object node) {
      return node instanceof CurrentTimestampLike || node instanceof CurrentDate || node instanceof LocalTimestamp;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (node instanceof CurrentTimestampLike) return new Literal(Long.valueOf(micros), TimestampType$.MODULE$);
      if (node instanceof CurrentDate) {
        int days = DateTimeUtils$.MODULE$.microsToDays(micros, ((CurrentDate) node).zoneId());
        return new Literal(Integer.valueOf(days), DateType$.MODULE$);
      }
      if (node instanceof LocalTimestamp) {
        java.time.Instant instant = java.time.Instant.ofEpochSecond(
          Math.floorDiv(micros, 1000000L), Math.floorMod(micros, 1000000L) * 1000L);
        java.time.LocalDateTime local = java.time.LocalDateTime.ofInstant(instant, ((LocalTimestamp) node).zoneId());
        return new Literal(
          Long.valueOf(DateTimeUtils$.MODULE$.localDateTimeToMicros(local)), TimestampNTZType$.MODULE$);
      }
      return otherwise.apply(node);
    }
  }
}
""".replace("LEAF_PREFIX", LEAF_PREFIX)
