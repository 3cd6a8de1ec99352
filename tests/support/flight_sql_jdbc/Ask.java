import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.sql.*;
import java.util.*;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("user", "reader");
        properties.put("password", arguments[1]);
        properties.put("useEncryption", "false");
        String address = "jdbc:arrow-flight-sql://" + arguments[0];
        try (Connection connection = DriverManager.getConnection(address, properties)) {
            DatabaseMetaData about = connection.getMetaData();
            System.out.println("product " + about.getDatabaseProductName() + " " + about.isReadOnly());
            try (ResultSet tables = about.getTables(null, "public", "%", null)) {
                while (tables.next()) System.out.println("table " + tables.getString("TABLE_NAME") + " " + tables.getString("TABLE_TYPE"));
            }
            try (ResultSet columns = about.getColumns(null, "public", "totals", "%")) {
                while (columns.next()) System.out.println("column " + columns.getString("COLUMN_NAME") + " " + columns.getInt("DATA_TYPE") + " " + columns.getString("REMARKS"));
            }
            for (ResultSet keys : List.of(about.getPrimaryKeys(null, "public", "totals"), about.getImportedKeys(null, "public", "totals"))) {
                while (keys.next()) System.out.println("unexpected key");
                keys.close();
            }
            for (Method method : DatabaseMetaData.class.getMethods()) {
                if (method.getParameterCount() > 0) continue;
                try {
                    Object told = method.invoke(about);
                    if (told instanceof ResultSet) ((ResultSet) told).close();
                } catch (InvocationTargetException error) {
                    System.out.println("untold " + method.getName() + ": " + error.getCause());
                }
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT customer, n, total FROM totals WHERE customer = ? AND n >= ?")) {
                System.out.println("parameters " + statement.getParameterMetaData().getParameterCount() + " columns " + statement.getMetaData().getColumnCount());
                for (String customer : List.of("ada", "bob")) {
                    statement.setString(1, customer);
                    statement.setLong(2, 1);
                    try (ResultSet rows = statement.executeQuery()) {
                        while (rows.next()) System.out.println("row " + rows.getString(1) + " " + rows.getLong(2) + " " + rows.getBigDecimal(3));
                    }
                }
            }
            try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery("SELECT * FROM \"Routes\"")) {
                while (rows.next()) System.out.println("at " + rows.getString("at") + " " + rows.getObject("at", java.time.Instant.class) + " " + rows.getArray("delays"));
            }
            try (Statement statement = connection.createStatement()) {
                statement.executeUpdate("DELETE FROM totals");
            } catch (SQLException error) {
                System.out.println("refused " + error.getMessage());
            }
        }
        properties.put("password", "wrong");
        try (Connection connection = DriverManager.getConnection(address, properties)) {
            System.out.println("unexpected connection");
        } catch (SQLException error) {
            System.out.println("refused " + error.getMessage());
        }
    }
}
